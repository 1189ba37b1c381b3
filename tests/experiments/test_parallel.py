"""Rows that are trained and studied in one pool: in order, with the methods they have, and nothing twice."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from experiments import parallel, pipeline, pool
from experiments.checkpoint_study import Study
from experiments.experiment import Sources
from experiments.pipeline import Pipeline
from experiments.row_files import read_rows
from tests.experiments.synthetic import ADAMW, RECIPE, experiment
from varprop.errors import InputError
from varprop.evaluation.results import Results

pytestmark = [
    pytest.mark.second,
    pytest.mark.filterwarnings("ignore:.*"),  # few examples and three epochs: what they warn of is seen elsewhere
]


class AtOnce:
    """A process that runs when it is started."""

    def __init__(self, target, args, name):
        self.target, self.args, self.name, self.exitcode = target, args, name, None

    def start(self):
        try:
            self.target(*self.args)
        except ArithmeticError:
            self.exitcode = 1
        else:
            self.exitcode = 0


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(pool, "PAUSE", 0)
    monkeypatch.setattr(pool.multiprocessing, "get_context", lambda _: SimpleNamespace(Process=AtOnce))


@pytest.fixture
def given(tmp_path, monkeypatch):
    """``given(rows, names, …)``: the arguments of the command with these rows."""

    def arguments(rows, names, *options):
        monkeypatch.setattr(parallel, "row_named", {row.name: row for row in rows}.__getitem__)
        monkeypatch.setattr(parallel.sys, "argv", ["parallel", names, str(tmp_path), "--device", "cpu", *options])
        return parallel._arguments()

    return arguments


@pytest.fixture
def run(given):
    return lambda *options: parallel.run(given(*options))


ROWS = experiment(RECIPE, name="tabled"), experiment(ADAMW, name="ordinary")
BOTH = ROWS, "tabled,ordinary:1", "--seeds", "0,3", "--methods", "mean;temperature,mc-2"
STUDIED = [
    *("tabled: training", "tabled, seed 0: mean", "tabled, seed 3: mean"),
    *("ordinary: training", "ordinary, seed 1: mean"),
    *("tabled, seed 0: temperature, mc-2", "tabled, seed 3: temperature, mc-2", "ordinary, seed 1: temperature"),
]


def done(capsys):
    """What ended well, by name."""
    lines = capsys.readouterr().out.splitlines()
    return [line.split(" s  ")[-1].split(": done after ")[0] for line in lines if ": done after " in line]


def test_two_rows_in_one_pool(run, tmp_path, capsys, monkeypatch):
    """Methods in groups, each row with those that it has and with its own seeds; and then there is nothing to do."""
    assert run(*BOTH, "--workers", "1", "--trainings", "1") == 0
    assert sorted(done(capsys)) == sorted(STUDIED)
    found = {(row.method, row.seed) for row in Results(tmp_path / "tabled").rows}
    assert found == {(method, seed) for method in ("mean", "temperature", "mc-2") for seed in (0, 3)}
    assert [row["method"] for row in read_rows(tmp_path / "ordinary" / "rows.jsonl")] == ["mean", "temperature"]
    for kind in (Pipeline, Study):
        monkeypatch.setattr(kind, "network" if kind is Pipeline else "_tempered", lambda *_: pytest.fail("again"))
    monkeypatch.setattr(Pipeline, "_train", lambda *_: pytest.fail("again"))
    assert run(*BOTH) == 0


def test_the_first_methods_of_all_rows_come_first(given):
    names = [job.name for job in parallel.jobs(given(*BOTH))]
    assert names == ["tabled: training", "ordinary: training", *(name for name in STUDIED if "training" not in name)]


def test_a_study_that_fails_is_tried_again_by_itself_and_by_the_next_call(run, tmp_path, capsys, monkeypatch):
    evaluate, broken = Pipeline.evaluate, []

    def breaks(self, network, seed, methods, costs):
        if seed == 0 and methods[0].slug == "mean" and len(broken) < 3:
            broken.append(seed)
            raise ArithmeticError
        evaluate(self, network, seed, methods, costs)

    monkeypatch.setattr(Pipeline, "evaluate", breaks)
    assert run(*BOTH) == 1
    assert "missing: tabled, seed 0: mean (failed twice)" in capsys.readouterr().out
    assert len(Results(tmp_path / "tabled").rows) == 5
    assert run(*BOTH) == 0  # the third time, and then the fourth
    assert len(broken) == 3
    assert len(Results(tmp_path / "tabled").rows) == 6


def test_what_no_row_has_is_refused(run):
    with pytest.raises(InputError, match=r"no method 'men'"):
        run(ROWS, "tabled", "--methods", "men")
    with pytest.raises(InputError, match=r"cvp-adam has no method for tabled"):
        run(ROWS, "tabled,ordinary", "--methods", "cvp-adam")
    with pytest.raises(InputError, match="named twice"):
        run(ROWS, "tabled:0,tabled:1")
    with pytest.raises(InputError, match="--search names tabld"):
        run(ROWS, "tabled", "--search", "tabld")


def test_rows_of_the_tables_with_the_best_candidate(run, tmp_path, monkeypatch):
    """On held-out data, by AURC; costs are added in the end, and nothing is done twice."""
    rates = {"slow": 0.1, "fast": 0.5}
    candidates = {name: replace(RECIPE, ivon={**RECIPE.ivon, "lr": rate}) for name, rate in rates.items()}
    row = experiment(recipe=RECIPE, candidates=candidates)
    costs = {slug: {"plain": 2.0, "sample": 1.0} for slug in ("mean", "temperature", "mc-2")}
    monkeypatch.setattr(pipeline, "relative_costs", lambda *_, **__: costs)
    options = ["--search", "squares", "--costs", "--seeds", "0,3", "--methods", "mean,temperature;mc-2"]
    assert run([row], "squares", *options) == 0
    rows = Results(tmp_path).rows
    assert {(row.method, row.seed) for row in rows} == {(m, s) for m in costs for s in (0, 3)}
    risks = dict.fromkeys(rates, 0.0)
    for trial in json.loads((tmp_path / "squares-search.json").read_text())["trials"]:
        risks[trial["candidate"]] += trial["sampled"]["aurc"]
    assert {row.config["recipe"]["ivon"]["lr"] for row in rows} == {rates[min(rates, key=risks.__getitem__)]}
    assert all(row.cost == {"plain": 2.0, "sample": 1.0} for row in rows)
    assert all(Results(tmp_path).scores(row) for row in rows)
    monkeypatch.setattr(pipeline.Pipeline, "network", lambda *_: pytest.fail("there was nothing to do"))
    assert run([row], "squares", *options) == 0


def test_pretraining_comes_first(run, tmp_path):
    pytest.importorskip("transformers")
    from tests.experiments import synthetic_rows  # which imports it

    row, _ = synthetic_rows.nlvr(tmp_path)
    row = replace(row, candidates={"plain": row.recipe})
    options = ["--search", row.name, "--seeds", "0", "--methods", "mean"]
    assert run([row], row.name, *options, "--data", str(tmp_path), "--weights", str(tmp_path / "bert")) == 0
    [found] = Results(tmp_path).rows
    [made] = [file.parent for file in tmp_path.glob("*stage3*/fusion.safetensors")]
    assert found.config["weights"] == Sources(weights=made).fingerprint
