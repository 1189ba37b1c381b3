"""Studies in several processes: all end, or what is left is named."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from experiments import parallel, pipeline
from experiments.experiment import Sources
from tests.experiments.synthetic import RECIPE, experiment
from varprop.evaluation.results import Results


class Stage:
    """A process that ends with a code, or never."""

    def __init__(self, name, code):
        self.name, self.code, self.exitcode, self.stopped = name, code, None, False

    def start(self):
        self.exitcode = self.code

    def terminate(self):
        self.stopped = True

    def join(self):
        pass


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch):
    monkeypatch.setattr(parallel, "PAUSE", 0)


def test_all_run_a_few_at_a_time(capsys):
    stages = [Stage(str(i), 0) for i in range(5)]
    assert parallel.run_processes(stages, 2, math.inf) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == list("01234")


def test_one_that_fails_ends_the_whole(capsys):
    stages = [Stage("good", 0), Stage("bad", 1), Stage("slow", None), Stage("late", 0)]
    assert parallel.run_processes(stages, 3, math.inf) == 3
    assert capsys.readouterr().out.count("not finished") == 3
    assert stages[2].stopped
    assert stages[3].exitcode is None


def test_what_takes_too_long_is_stopped():
    stages = [Stage("slow", None)]
    assert parallel.run_processes(stages, 1, 0.0) == 1


class AtOnce:
    """A process that runs when it is started."""

    def __init__(self, target, args, name):
        self.target, self.args, self.name, self.exitcode = target, args, name, None

    def start(self):
        self.target(*self.args)
        self.exitcode = 0


@pytest.mark.second
@pytest.mark.filterwarnings("ignore:.*(common answer, given to all|one answer for nearly all):UserWarning")
def test_rows_of_the_tables_with_the_best_candidate(tmp_path, monkeypatch, capsys):
    """On held-out data, by AURC; costs are added in the end, and nothing is done twice."""
    rates = {"slow": 0.1, "fast": 0.5}
    candidates = {name: replace(RECIPE, ivon={**RECIPE.ivon, "lr": rate}) for name, rate in rates.items()}
    row = experiment(recipe=RECIPE, candidates=candidates)
    monkeypatch.setattr(parallel, "row_named", lambda _: row)
    monkeypatch.setattr(parallel.multiprocessing, "get_context", lambda _: SimpleNamespace(Process=AtOnce))
    costs = {slug: {"plain": 2.0, "sample": 1.0} for slug in ("mean", "temperature", "mc-2")}
    monkeypatch.setattr(pipeline, "relative_costs", lambda *_, **__: costs)
    options = ["--tables", "--search", "--costs", "--device", "cpu", "--seeds", "0,3"]
    args = ["parallel", "squares", str(tmp_path), *options, "--methods", "mean,temperature;mc-2"]
    monkeypatch.setattr(parallel.sys, "argv", args)
    assert parallel.run(parallel._arguments()) == 0
    rows = Results(tmp_path).rows
    assert {(row.method, row.seed) for row in rows} == {(m, s) for m in costs for s in (0, 3)}
    risks = dict.fromkeys(rates, 0.0)
    for trial in json.loads((tmp_path / "squares-search.json").read_text())["trials"]:
        risks[trial["candidate"]] += trial["sampled"]["aurc"]
    assert {row.config["recipe"]["ivon"]["lr"] for row in rows} == {rates[min(rates, key=risks.__getitem__)]}
    assert all(row.cost == {"plain": 2.0, "sample": 1.0} for row in rows)
    assert all(Results(tmp_path).scores(row) for row in rows)
    monkeypatch.setattr(pipeline.Pipeline, "network", lambda *_: pytest.fail("there was nothing to do"))
    assert parallel.run(parallel._arguments()) == 0


@pytest.mark.second
@pytest.mark.filterwarnings("ignore:.*(common answer, given to all|one answer for nearly all):UserWarning")
def test_pretraining_comes_first(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    from tests.experiments import synthetic_rows  # which imports it

    row, _ = synthetic_rows.nlvr(tmp_path)
    row = replace(row, candidates={"plain": row.recipe})
    monkeypatch.setattr(parallel, "row_named", lambda _: row)
    monkeypatch.setattr(parallel.multiprocessing, "get_context", lambda _: SimpleNamespace(Process=AtOnce))
    options = ["--tables", "--search", "--device", "cpu", "--seeds", "0", "--methods", "mean"]
    places = ["--data", str(tmp_path), "--weights", str(tmp_path / "bert")]
    monkeypatch.setattr(parallel.sys, "argv", ["parallel", row.name, str(tmp_path / "run"), *options, *places])
    assert parallel.run(parallel._arguments()) == 0
    [found] = Results(tmp_path / "run").rows
    [made] = [file.parent for file in (tmp_path / "run").glob("*stage3*/fusion.safetensors")]
    assert found.config["weights"] == Sources(weights=made).fingerprint
