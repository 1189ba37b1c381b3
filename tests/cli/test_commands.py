"""Every command does what it says."""

import functools
import importlib
import json
from dataclasses import replace

import pandas as pd
import pytest
import torch
import transformers

import varprop as vp
from tests.report.synthetic_results import make
from varprop.cli import app
from varprop.evaluation.methods import listed
from varprop.evaluation.results import Results

pytestmark = [
    pytest.mark.second,
    pytest.mark.filterwarnings("ignore:calibration ended after", "ignore:calibration raised the NLL"),
]
MINE = ("--model", "mine:model", "--posterior", "p.safetensors")
COSTS = {"mean": {"plain": 1.0, "sample": 0.5}, "CVP": {"plain": 2.5, "sample": 1.25}}
NAMES = ["demo", "audit", "fit", "predict", "evaluate", "bench", "report", "score", "serve"]


def mine_model():
    return importlib.import_module("mine").model().eval()


def test_help_lists_the_commands(varprop):
    found = varprop("--help")
    assert found.code == 0
    assert {command.name or command.callback.__name__ for command in app.app.registered_commands} >= set(NAMES)
    assert all(f" {name} " in found.out for name in NAMES)
    bare = varprop()
    assert bare.code == 2
    assert "demo" in bare.out + bare.err


@pytest.mark.parametrize("name", NAMES)
def test_help_has_an_example(varprop, name):
    found = varprop(name, "--help")
    assert found.code == 0
    assert f"Example: varprop {name}" in " ".join(found.out.split())


def test_audit_of_a_function(varprop, mine):
    found = varprop("audit", "mine:model", "--shape", "2,4")
    assert found.code == 0
    assert "Sequential under CVP: 3 ops, 0 approximate, 0 independent, 0 missing" in found.out
    assert "aten.gelu.default" in found.out
    assert "STREAMLINING" in varprop("audit", "mine:model", "--shape", "2,4", "--rules", "STREAMLINING").out


def test_audit_tells_by_its_exit_code_that_a_rule_is_missing(varprop, mine):
    found = varprop("audit", "mine:odd", "--shape", "2,4")
    assert found.code == 1
    assert "1 missing" in found.out
    assert "aten.i0" in found.out


def test_audit_of_a_hugging_face_class(varprop, monkeypatch):
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    vit = functools.partial(transformers.ViTConfig, **small, image_size=8, patch_size=4)
    bert = functools.partial(transformers.BertConfig, **small, vocab_size=20)
    monkeypatch.setattr(transformers.ViTForImageClassification, "config_class", vit)
    monkeypatch.setattr(transformers.BertForSequenceClassification, "config_class", bert)
    for args in (["ViTForImageClassification"], ["BertForSequenceClassification", "--shape", "2,7"]):
        found = varprop("audit", *args)
        assert found.code == 0, found.err
        assert f"{args[0]} under CVP" in found.out
        assert ", 0 missing" in found.out


def test_fit_saves_a_predictor_that_loads(varprop, mine):
    found = varprop("fit", *MINE, "--data", "mine:held_out", "--out", "net", "--epochs", "3")
    assert found.code == 0, found.err
    assert "(output)" in found.out
    predictor = vp.load("net", mine_model())
    assert predictor.link == vp.links.Softmax()
    scales = predictor.net.scales
    assert all(alpha != 1 for alpha in scales.values())
    assert predictor(torch.randn(2, 4)).probs.shape == (2, 3)
    assert all(f"{alpha:.3g}" in found.out for alpha in scales.values())

    data = ("--data", "mine:held_out", "--epochs", "2")
    varprop("fit", *MINE, *data, "--out", "one", "--output-only", "--link", "mean-field-softmax")
    predictor = vp.load("one", mine_model())
    assert [name for name, alpha in predictor.net.scales.items() if alpha != 1] == ["(output)"]
    assert predictor.link == vp.links.MeanFieldSoftmax()


@pytest.mark.filterwarnings("ignore:the best width of the posterior is the largest")  # the model is not trained
def test_fit_and_predict_without_a_posterior(varprop, mine):
    fitted = varprop("fit", "--model", "mine:model", "--data", "mine:held_out", "--out", "net", "--device", "auto")
    assert fitted.code == 0, fitted.err
    for data in ("mine:test", "mine:inputs"):
        found = varprop("predict", "net", "--model", "mine:model", "--data", data, "--out", "found.csv")
        assert found.code == 0, found.err
        assert "100 predictions: found.csv" in found.out
    table = pd.read_csv("found.csv")
    inputs = importlib.import_module("mine").inputs()
    expected = vp.load("net", mine_model()).predict(inputs, progress=False)
    assert table["label"].tolist() == expected.label.tolist()
    torch.testing.assert_close(torch.tensor(table["confidence"].values), expected.confidence.double())


def test_version(varprop):
    found = varprop("--version")
    assert found.code == 0
    assert found.out.startswith(f"varprop {vp.__version__}, torch ")


def test_evaluate_prints_a_table_and_keeps_rows(varprop, mine):
    data = ("--held-out", "mine:held_out", "--test", "mine:test", "--out", "results")
    found = varprop("evaluate", *MINE, *data, "--methods", "mean,mc-2,cvp-none", "--row", "toy", "--seed", "3")
    assert found.code == 0, found.err
    for text in ("toy", "mean", "MC-2", "CVP, none", "AURC"):
        assert text in found.out
    results = Results(mine / "results")
    assert [row.key for row in results.rows] == [("toy", name, 3) for name in ("mean", "mc-2", "cvp-none")]
    assert all(row.examples == 100 for row in results.rows)
    assert results.rows[0].config["model"] == "mine:model"
    model = results.scores(results.rows[0])
    assert len(model["held_out_confidence"]) == 200
    more = varprop("evaluate", *MINE, *data, "--methods", "temperature", "--row", "toy", "--seed", "3")
    assert "MC-2" in more.out  # rows are added
    assert len(results.rows) == 4


def test_evaluate_a_regression(varprop, mine):
    data = ("--held-out", "mine:measured", "--test", "mine:measured", "--out", "results")
    found = varprop("evaluate", *MINE, *data, "--link", "gaussian")
    assert found.code == 0, found.err
    for text in ("RMSE", "CRPS", "In 95%", "MC-8", "CVP, adaptive"):
        assert text in found.out
    for row in Results(mine / "results").rows:
        assert 0.9 < row.metrics["picp@95"] < 1
    assert varprop("report", "results").code == 0
    assert "CRPS" in (mine / "results" / "report" / "report.html").read_text()


def test_bench(varprop, mine, monkeypatch):
    seen = {}

    def costs(methods, model, posterior, *args, **kwargs):
        seen.update(methods=methods, shape=args[0].shape)
        return COSTS

    monkeypatch.setattr(app, "relative_costs", costs)
    found = varprop("bench", *MINE, "--shape", "8,4", "--methods", "mean,cvp")
    assert found.code == 0
    assert seen == {"methods": listed("mean,cvp"), "shape": (8, 4)}
    line = next(line for line in found.out.splitlines() if "CVP" in line)
    assert "2.50" in line
    assert "1.25" in line


def test_report_and_operating_points(varprop, tmp_path, monkeypatch):
    make(tmp_path / "results", methods=["mean", "cvp"], seeds=1, thumbnails=0)
    found = varprop("report", tmp_path / "results", "--out", tmp_path / "out", "--risk", "0.05")
    assert found.code == 0, found.err
    assert (tmp_path / "out" / "report.html").is_file()
    assert str(tmp_path / "out" / "report.html") in found.out
    assert "at most 5 % wrong" in found.out
    results = Results(tmp_path / "results")
    scores = results.scores(results.rows[1])
    cells = [cell.strip() for cell in next(x for x in found.out.splitlines() if "CVP" in x).split("│")]
    threshold, answered, wrong = map(float, cells[3:6])
    met = scores["held_out_confidence"] >= threshold - 5e-5
    assert (1 - scores["held_out_correctness"][met]).mean() <= 0.05
    chosen = scores["confidence"] >= threshold - 5e-5
    assert answered == pytest.approx(100 * chosen.mean(), abs=0.05)
    assert wrong == pytest.approx(100 * (1 - scores["correctness"][chosen]).mean(), abs=0.005)
    rows = [replace(row, row="unlucky") for row in results.rows]
    wrong = {name: 0 * array for name, array in scores.items()}
    results.add(rows[0], wrong)
    results.add(rows[1])
    monkeypatch.setattr(app, "write_report", lambda folder, out: folder)
    lines = varprop("report", tmp_path / "results", "--risk", "0.05").out.partition("unlucky")[2].splitlines()
    assert "none is enough" in next(line for line in lines if "mean" in line)
    assert "not known" in next(line for line in lines if "CVP" in line)


def test_recipe_gives_the_options_and_flags_win(varprop, mine):
    recipe = {
        "model": "mine:model",
        "posterior": "p.safetensors",
        "held-out": "mine:held_out",
        "test": "mine:test",
        "methods": ["mean", "mc-2"],
        "row": "from the recipe",
        "seed": 7,
        "out": "results",
    }
    (mine / "recipe.yaml").write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in recipe.items()))
    found = varprop("evaluate", "--recipe", "recipe.yaml")
    assert found.code == 0, found.err
    assert [row.key for row in Results(mine / "results").rows] == [
        ("from the recipe", "mean", 7),
        ("from the recipe", "mc-2", 7),
    ]
    varprop("evaluate", "--row", "mine", "--recipe", "recipe.yaml", "--methods", "mc-1", "--seed", "1")
    assert Results(mine / "results").rows[-1].key == ("mine", "mc-1", 1)


def test_recipe_of_fit(varprop, mine):
    text = "model: mine:model\nposterior: p.safetensors\ndata: mine:held_out\nout: net\noutput_only: true\n"
    (mine / "recipe.yaml").write_text(text)
    found = varprop("fit", "--recipe", "recipe.yaml", "--epochs", "2")
    assert found.code == 0, found.err
    assert sum(alpha != 1 for alpha in vp.load("net", mine_model()).net.scales.values()) == 1


def test_warnings_are_one_line(varprop, monkeypatch):
    import warnings

    monkeypatch.setattr(app, "write_report", lambda *_: warnings.warn("mind this", stacklevel=1))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        found = varprop("report", "x")
    assert found.err == "warning: mind this\n"
