"""The demo, on a few steps of training."""

import sys

import pytest

from varprop.cli import app, demo
from varprop.evaluation.methods import listed
from varprop.evaluation.results import Results

pytestmark = [
    pytest.mark.second,
    pytest.mark.filterwarnings("ignore:calibration ended after", "ignore:calibration raised the NLL"),
]


@pytest.fixture
def short(monkeypatch, tmp_path):
    """One epoch of training, a step of calibration, no drawing."""
    monkeypatch.setattr(demo, "EPOCHS", 1)
    monkeypatch.setattr(demo, "CALIBRATION", {"epochs": 1})
    monkeypatch.setattr(demo, "METHODS", tuple(listed("mean,mc-2,cvp")))
    monkeypatch.setattr(app, "write_report", lambda folder, out: folder / "report.html")
    monkeypatch.chdir(tmp_path)


def test_rows_table_and_report(varprop, short):
    found = varprop("demo", "--seeds", "3")
    assert found.code == 0, found.err
    results = Results("results/digits")
    assert [(row.method, row.seed) for row in results.rows] == [("mean", 3), ("mc-2", 3), ("cvp", 3)]
    assert {row.examples for row in results.rows} == {demo.SIZES[2]}
    assert results.examples("digits").images.shape[1:] == (8, 8)
    assert "report: results/digits/report.html" in found.out
    assert all(title in found.out for title in ("mean", "MC-2", "CVP", "AURC"))
    assert "it/s" not in found.err, "a progress bar where there is no terminal"
    assert "examples/s" not in found.err


def test_costs_are_measured_when_they_are_asked_for(varprop, short, monkeypatch):
    cost = {"plain": 2.0, "sample": 1.0}
    monkeypatch.setattr(demo, "relative_costs", lambda methods, *_: {method.slug: cost for method in methods})
    assert varprop("demo", "--costs").code == 0
    assert [row.cost for row in Results("results/digits").rows] == [cost] * 3


def test_without_scikit_learn(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert "pip install 'varprop[demo]'" in refused("demo")


def test_parts_are_disjoint_and_complete():
    parts = demo.read_digits()
    assert tuple(len(part.labels) for part in parts) == demo.SIZES
    assert sum(demo.SIZES) == 1797
    assert all(part.images.min() == -1 and part.images.max() == 1 for part in parts)
