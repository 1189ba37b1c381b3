"""The demo end to end, on little: every method is there, nothing finished is done twice, a kill changes nothing."""

from dataclasses import replace

import numpy as np
import pytest

from tests.demo.made import RECIPE, images
from varprop.demo import pipeline
from varprop.demo.pipeline import METHODS, Pipeline
from varprop.errors import ResultsError
from varprop.report import Results
from varprop.report.rows import METRICS

# Two steps of calibration are enough to see that it happens.
pytestmark = pytest.mark.filterwarnings("ignore:calibration ended after", "ignore:calibration raised the NLL")
COST = {"plain": 1.5, "sample": 1.0}
FEW = ("mean", "MC-2", "Streamlining")


@pytest.fixture(autouse=True)
def no_timing(monkeypatch):
    monkeypatch.setattr(pipeline, "relative_costs", lambda methods, *_: dict.fromkeys(methods, COST))


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(pipeline, "METHODS", FEW)


@pytest.fixture
def built(monkeypatch):
    """The methods that are built, as they are built."""
    names = []

    def build(method, *args, **kwargs):
        names.append(method)
        return pipeline_build(method, *args, **kwargs)

    pipeline_build = pipeline.build
    monkeypatch.setattr(pipeline, "build", build)
    return names


@pytest.fixture
def trained(monkeypatch):
    """How often there was training, and what to do in its stead."""
    calls = []

    def train(*args, **kwargs):
        calls.append(args[3])
        return pipeline_train(*args, **kwargs)

    pipeline_train = pipeline.train
    monkeypatch.setattr(pipeline, "train", train)
    return calls


def make(folder, seed=0, recipe=RECIPE, **options):
    said = []
    return Pipeline(images(), recipe, seed, folder, progress=False, say=said.append, **options), said


def contents(results):
    """All that was measured: rows without their time, and the scores of each example."""
    rows = [replace(row, time=None) for row in results.rows]
    return rows, [results.scores(row) for row in results.rows]


def same(a, b):
    assert a[0] == b[0]
    for mine, others in zip(a[1], b[1], strict=True):
        assert mine.keys() == others.keys()
        assert all(np.array_equal(mine[name], others[name]) for name in mine)


def test_every_method_has_a_row(tmp_path, trained, built):
    run, _ = make(tmp_path)
    results = run.run()
    assert tuple(row.method for row in results.rows) == METHODS == tuple(built)
    for row in results.rows:
        assert (row.row, row.seed, row.examples) == ("made", 0, 48)
        assert set(row.metrics) == set(METRICS)
        assert row.cost == COST
        assert row.config["recipe"]["epochs"] == 3
        assert {"torch", "varprop"} <= row.versions.keys()
        scores = results.scores(row)
        assert len(scores["confidence"]) == 48
        assert len(scores["held_out_confidence"]) == 180
    rows = {row.method: row for row in results.rows}
    assert [name for name, row in rows.items() if row.scales] == ["Streamlining", "CVP"]
    assert [name for name, alpha in rows["Streamlining"].scales.items() if alpha != 1] == ["(output)"]
    assert len(rows["CVP"].scales) > 3
    assert all(alpha != 1 for alpha in rows["CVP"].scales.values())
    assert {"blocks.0.mlp", "head"} < {entry["path"] for entry in rows["CVP"].fidelity}
    assert rows["mean"].metrics["accuracy"] == rows["temperature"].metrics["accuracy"]
    assert results.examples("made").images.shape == (48, 8, 8)
    assert results.examples("made").names == ("left", "right", "below")

    before = contents(results)
    run, said = make(tmp_path)
    same(before, contents(run.run()))
    assert trained == [0]
    assert len(built) == len(METHODS)
    assert said == ["all 8 methods are there already: nothing to do"]


def test_seeds_share_a_folder_and_differ(tmp_path, few):
    make(tmp_path, seed=0)[0].run()
    results = make(tmp_path, seed=1)[0].run()
    assert [(row.method, row.seed) for row in results.rows] == [(name, seed) for seed in (0, 1) for name in FEW]
    first, second = (results.scores(row)["confidence"] for row in results.rows[:: len(FEW)])
    assert not np.array_equal(first, second)


def test_a_kill_between_methods_resumes_with_the_missing_ones(tmp_path, few, built, monkeypatch):
    whole = contents(make(tmp_path / "whole")[0].run())
    built.clear()
    measure = pipeline.measure

    def killed(*args, method, **kwargs):
        if method == "MC-2":
            raise KeyboardInterrupt
        return measure(*args, method=method, **kwargs)

    monkeypatch.setattr(pipeline, "measure", killed)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "killed")[0].run()
    assert [row.method for row in Results(tmp_path / "killed").rows] == ["mean"]
    monkeypatch.setattr(pipeline, "measure", measure)
    built.clear()
    same(whole, contents(make(tmp_path / "killed")[0].run()))
    assert built == ["MC-2", "Streamlining"]


def test_another_recipe_is_another_result(tmp_path, few, trained, built):
    first = contents(make(tmp_path)[0].run())
    changed = replace(RECIPE, epochs=4)
    results = make(tmp_path, recipe=changed)[0].run()
    assert built == [*FEW, *FEW]
    assert [row.method for row in results.rows] == list(FEW)  # in the place of the old ones
    assert {row.config["recipe"]["epochs"] for row in results.rows} == {4}
    assert results.rows[0].metrics != first[0][0].metrics
    alone = make(tmp_path / "alone", recipe=changed)[0].run()
    same(contents(alone), contents(results))  # nothing of the other training is in it


def test_no_costs_where_nothing_can_be_compiled(tmp_path, few, monkeypatch):
    monkeypatch.setattr(pipeline, "relative_costs", lambda *_: {})
    results = make(tmp_path)[0].run()
    assert [row.cost for row in results.rows] == [None] * 3


def test_a_folder_that_cannot_be_written_to_is_known_before_the_training(tmp_path, few, trained):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="choose another folder|give a results folder"):
        make(tmp_path / "file" / "results")[0].run()
    assert trained == []
