"""Wrong uses: one line that says what and what to do, exit code 2, no traceback."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from tests.report.synthetic_results import make
from varprop.cli import app, entry
from varprop.cli.references import numbers
from varprop.evaluation.results import FORMAT

MINE = ("--model", "mine:model", "--posterior", "p.safetensors")
WHOLE = "model: mine:model\nposterior: p.safetensors\ndata: mine:held_out\nout: out\n"
DATA = ("--held-out", "mine:held_out", "--test", "mine:test")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["Nonsense"], "'Nonsense' is neither module:function nor a model class of transformers"),
        (["pipeline"], "'pipeline' is neither module:function nor a model class"),  # of transformers, but no class
        (["BertConfig"], "'BertConfig' is neither"),
        (["PreTrainedModel"], "'PreTrainedModel' is neither"),
        (["mine:"], "'mine:' is not of the form module:function"),
        ([":model"], "not of the form module:function"),
        ([".mine:model"], "not of the form module:function"),
        (["there.is:none"], "No module named 'there'; it is looked for in this folder"),
        (["mine:missing"], "mine has no function missing"),
        (["mine:constant"], "mine has no function constant"),
        (["mine:number"], "returned a int, not a torch.nn.Module"),
        (["mine:model"], "give --shape"),
        (
            ["mine:model", "--shape", "2,x"],
            "a shape is whole numbers with commas between, such as 2,3,224,224",
        ),
        (["mine:model", "--shape", "2,-4"], "a shape is whole numbers"),
        (["mine:model", "--shape", "0,4"], "a shape is whole numbers"),
        (["mine:model", "--shape", "²,4"], "a shape is whole numbers"),
        (["mine:model", "--shape", "2,5"], "Sequential cannot take inputs of shape [2, 5]: mat1 and mat2"),
        (["mine:model", "--shape", "2,4", "--rules", "magic"], "there is no rule set 'magic'; there are CVP"),
        ([], "Missing argument 'model'; see varprop audit --help"),
    ],
)
def test_models(refused, mine, args, message):
    assert message in refused("audit", *args)


@pytest.mark.parametrize("seeds", ["x", "", "-1", "1-", "3-1", "0,,1", "0.5", "²", "0-4-5"])
def test_seeds(refused, seeds):
    assert "seeds are numbers or ranges, such as 0, 0-4 or 0,3" in refused("demo", f"--seeds={seeds}")


def test_seeds_that_are_right():
    assert numbers("0") == [0]
    assert numbers("0-3,7") == [0, 1, 2, 3, 7]
    assert numbers("2, 5") == [2, 5]


@pytest.mark.parametrize("risk", ["3", "0", "1", "-0.1", "nan"])
def test_risks(refused, tmp_path, risk):
    make(tmp_path, methods=["mean"], seeds=1, thumbnails=0)
    line = refused("report", tmp_path, f"--risk={risk}")
    assert "a risk is a fraction between 0 and 1, such as 0.01" in line
    assert not (tmp_path / "report").exists()
    assert "--risk" in refused("report", tmp_path, "--risk", "low")


def test_options(refused, mine):
    assert "No such option: --rsk; see varprop demo --help" in refused("demo", "--rsk", "3")
    fit = ("fit", *MINE, "--data", "mine:held_out", "--out", "out")
    assert "'--epochs'" in refused(*fit, "--epochs", "0")
    assert "'--epochs'" in refused(*fit, "--epochs", "many")
    assert "Missing option '--posterior'" in refused("evaluate", "--model", "mine:model")
    assert "No such command 'dmeo'" in refused("dmeo")


@pytest.mark.parametrize("device", ["gpu", "cuda:999", ""])
def test_devices(refused, mine, device):
    out = ("--out", "out", f"--device={device}")
    for args in (("fit", *MINE, "--data", "mine:held_out", *out), ("evaluate", *MINE, *DATA, *out)):
        assert f"there is no device {device!r} here: use --device cpu" in refused(*args)
    assert "there is no device" in refused("bench", *MINE, "--shape", "2,4", f"--device={device}")


def test_posterior_files(refused, mine):
    (mine / "broken.safetensors").write_bytes((mine / "p.safetensors").read_bytes()[:-9])
    chosen = ("--model", "mine:model", "--posterior", "broken.safetensors")
    fit, evaluate = ("fit", "--data", "mine:held_out", "--out", "out"), ("evaluate", *DATA, "--out", "out")
    for command in (fit, evaluate, ("bench",)):
        assert "not a whole safetensors file" in refused(*command, *chosen)


def test_methods_and_links(refused, mine):
    evaluate = ("evaluate", *MINE, *DATA, "--out", "out")
    assert "there is no method 'magic'; there are mc-<samples>, mean" in refused(*evaluate, "--methods", "mean,magic")
    assert "there is no method 'magic'" in refused("bench", *MINE, "--shape", "2,4", "--methods", "magic")
    assert "there is no link 'probit'; there are softmax" in refused(*evaluate, "--link", "probit")


def test_files_of_predictions(refused, mine):
    predict = ("predict", "net", "--model", "mine:model", "--data", "mine:inputs")
    assert "found.txt is neither .csv nor .safetensors" in refused(*predict, "--out", "found.txt")
    assert "cannot load net" in refused(*predict, "--out", "found.csv")


def test_data_functions(refused, mine):
    def fit(data):
        return refused("fit", *MINE, "--data", data, "--out", "out")

    assert "there are no batches" in fit("mine:nothing")
    assert "batches are a int" in fit("mine:number")
    assert "mine has no function missing" in fit("mine:missing")
    assert "'held_out' is not of the form module:function" in fit("held_out")
    assert "Sequential cannot take inputs of shape [9, 3]" in fit("mine:narrow")


def test_bench_without_a_compiler(varprop, mine, monkeypatch):
    monkeypatch.setattr(app, "relative_costs", lambda *_, **__: {})
    found = varprop("bench", *MINE, "--shape", "2,4")
    assert found.code == 2
    assert "install one for C++" in found.err


@pytest.mark.second
def test_results_that_are_damaged_or_of_another_version(refused, mine):
    file = make(mine / "results", methods=["mean"], seeds=1, thumbnails=0).file
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("UPDATE rows SET scores = x'00'")
        assert "run what they belong to again" in refused("report", "results")
        db.execute("PRAGMA user_version = 99")
    hint = f"has format 99, this varprop reads format {FORMAT}; use the varprop that wrote it, or another folder"
    assert hint in refused("report", "results")
    assert hint in refused("evaluate", *MINE, *DATA, "--out", "results")
    assert hint in refused("demo", "--out", "results")


def test_no_permission(refused, mine, monkeypatch):
    (mine / "file").write_text("")
    calls = (
        ("demo", "--out"),
        ("fit", *MINE, "--data", "mine:held_out", "--out"),
        ("evaluate", *MINE, *DATA, "--out"),
    )
    for call in calls:  # below a file nobody can write, not even root
        assert "cannot write to file/below: Not a directory; choose another folder" in refused(*call, "file/below")
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and allowed(path, mode))
    for call in calls:
        assert "no permission to write to locked; choose another folder" in refused(*call, "locked")


def test_no_permission_found_late(refused, monkeypatch, tmp_path):
    def denied(*_):
        raise PermissionError(13, "Permission denied", "some/file")

    monkeypatch.setattr(app, "write_report", denied)
    line = refused("report", tmp_path)
    assert line == "error: cannot read or write some/file: Permission denied; choose another place"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read recipe.yaml: No such file"),
        ("a: [1", "recipe.yaml is not YAML"),
        ("", "recipe.yaml holds no options, such as 'epochs: 5'"),
        ("- a\n- b", "recipe.yaml holds no options"),
        (
            "modle: mine:model\nlearning rate: 3",
            "has unknown options: learning rate, modle; there are data",
        ),
        (f"{WHOLE}epochs: many", "'--epochs'"),
        (f"{WHOLE}link: [1, 2]", "there is no link '1,2'"),
        ("model: mine:model", "Missing option '--data'"),
        (b"\xff\xfe\x00a", "recipe.yaml is not YAML"),
    ],
)
def test_recipes(refused, mine, text, message):
    if text is not None:
        (mine / "recipe.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert message in refused("fit", "--recipe", "recipe.yaml")


def test_transformers_is_an_extra(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "pip install 'varprop[hf]'" in refused("audit", "ViTForImageClassification")


def test_entry_says_what_is_missing(monkeypatch, capsys):
    found = entry.importlib.util.find_spec
    missing = ("typer", "yaml")
    monkeypatch.setattr(entry.importlib.util, "find_spec", lambda name: None if name in missing else found(name))
    with pytest.raises(SystemExit) as stop:
        entry.main()
    assert stop.value.code == 2
    assert capsys.readouterr().err == "error: the command line needs typer, pyyaml: pip install 'varprop[cli]'\n"


@pytest.mark.second
def test_without_typer_in_a_fresh_process():
    """Also where a module is there but must not be imported: nothing of the command line may come before the check."""
    code = "import sys; sys.modules['typer'] = None; from varprop.cli.entry import main; main()"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "pip install 'varprop[cli]'" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.second
def test_the_extra_cli_is_enough():
    """Packages that draw figures or read models are asked for by the commands that use them, and by no import."""
    others = ("matplotlib", "jinja2", "PIL", "sklearn", "transformers", "onnxruntime", "pyarrow")
    code = f"import sys; sys.modules.update(dict.fromkeys({others})); import varprop.cli.app"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.second
def test_the_installed_command(tmp_path):
    command = [sys.executable, "-c", "from varprop.cli.entry import main; main()", "report", str(tmp_path / "none")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr.startswith("error: there is no folder")


BROKEN = """
import torch
def model():
    return torch.zeros(2) + torch.zeros(3)
def stream():
    yield torch.zeros(2, 4), torch.zeros(2).long()
    raise KeyError("labels")
"""


def test_errors_in_functions_of_ones_own(refused, mine):
    (mine / "broken.py").write_text(BROKEN)
    (mine / "typo.py").write_text("def model(:\n    pass\n")
    found = refused("audit", "broken:model", "--shape", "2,4")
    assert found.startswith("error: RuntimeError at broken.py:4: The size of tensor a (2) must match")
    assert "SyntaxError at typo.py:1: " in refused("audit", "typo:model")
    found = refused("fit", *MINE, "--data", "broken:stream", "--out", "out")
    assert found == "error: KeyError at broken.py:7: 'labels'"


def test_errors_of_ours_keep_their_traceback(varprop, mine, monkeypatch):
    monkeypatch.setattr(app.auditing, "audit", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        varprop("audit", "mine:model", "--shape", "2,4")


def test_names_are_no_markup(varprop, mine):
    varprop("evaluate", *MINE, *DATA, "--out", "out", "--methods", "mean", "--row", "[red]a[/]")
    assert "[red]a[/]" in varprop("report", "out", "--risk", "0.1").out
