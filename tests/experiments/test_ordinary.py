"""Ordinary networks: every method has its row, rows are not made twice, and differences are paired."""

from pathlib import Path

import pytest

from experiments import checkpoint_study, ordinary
from experiments.checkpoint_study import Study
from experiments.ordinary import compare_paired
from experiments.pipeline import Pipeline
from experiments.row_files import read_rows
from tests.experiments.synthetic import ADAMW, experiment

pytestmark = [
    pytest.mark.second,
    pytest.mark.filterwarnings("ignore:.*"),  # 180 examples and two steps: what they warn of is seen elsewhere
]


@pytest.mark.slow
def test_every_method_has_a_row(tmp_path, monkeypatch):
    for name, value in {
        "WIDTHS": (0.01, 0.1),
        "SEARCH_SAMPLES": 2,
        "FINAL_SAMPLES": 2,
        "HELD_OUT": (20,),
        "ENSEMBLE_SIZE": 2,
    }.items():
        monkeypatch.setattr(checkpoint_study, name, value)
    pipeline = Pipeline(experiment(ADAMW), [0, 1], tmp_path, progress=False, log=lambda _: None)
    pipeline.train([0, 1])
    file = tmp_path / "rows.jsonl"
    Study(pipeline, 0, file).run()
    rows = read_rows(file)
    found = {row["method"]: row for row in rows}
    assert {
        "mean",
        "temperature",
        "cvp-adam",
        "cvp-isotropic",
        "mc-adam",
        "ensemble-2",
        "laplace",
        "factored-adam",
    } < found.keys()
    assert all(0 <= row["metrics"]["accuracy"] <= 1 for row in rows)
    assert found["temperature"]["metrics"]["accuracy"] == found["mean"]["metrics"]["accuracy"]
    assert "chosen" in found["cvp-adam"]
    assert "chosen" not in found["cvp-adam-paper"]
    rounded, exact = (found[name]["metrics"]["nll"] for name in ("cvp-adam-bfloat16", "cvp-adam"))
    assert rounded == pytest.approx(exact, rel=0.05)
    before = file.read_text()
    Study(pipeline, 0, file).run()
    assert file.read_text() == before


def test_differences_are_paired():
    rows = [
        {"method": method, "seed": seed, "metrics": {"nll": seed + (0.5 if method == "temperature" else 0.4)}}
        for method in ("temperature", "cvp")
        for seed in range(3)
    ]
    found = compare_paired(rows)["cvp"]["nll"]
    assert found["difference"] == pytest.approx(-0.1)
    assert found["error"] == pytest.approx(0, abs=1e-9)
    assert "difference" not in compare_paired(rows)["temperature"]["nll"]


DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("rows", sorted((DOCS / "results" / "ordinary").glob("*-*.jsonl")), ids=lambda path: path.stem)
def test_the_page_shows_the_stored_rows(rows):
    assert ordinary.table(read_rows(rows)) in (DOCS / "ordinary.md").read_text()
