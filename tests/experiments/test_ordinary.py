"""Ordinary networks: every method has its row, rows are not made twice, and differences are paired."""

from pathlib import Path

import pytest
import torch

from experiments import checkpoint_study, ordinary
from experiments.checkpoint_study import Study
from experiments.ordinary import compare_paired, two_way_error
from experiments.pipeline import Pipeline
from experiments.row_files import packed, read_rows, unpacked, unpacked_scores
from tests.experiments.synthetic import ADAMW, experiment
from varprop.evaluation.evaluated import Evaluation

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
    assert all(unpacked(row["right"]).double().mean() == pytest.approx(row["metrics"]["accuracy"]) for row in rows)
    assert len({row["right"]["labels"] for row in rows}) == 1
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


def evaluation(right, target):
    answers = torch.where(right, target, 1 - target)
    even = torch.full((len(target),), 0.5)
    parts = {"confidence": even, "correctness": right.float(), "label": answers, "target": target}
    return Evaluation({**parts, "nll": even, "brier": even})


def rows_of(rights, target):
    """One row for each method and seed, from which examples were right [seed, example]."""
    for method, right in rights.items():
        for seed, each in enumerate(right):
            found = evaluation(each, target)
            yield {"method": method, "seed": seed, "metrics": dict(found.metrics), **packed(found)}


def test_which_examples_were_right_is_kept():
    generator = torch.Generator().manual_seed(0)
    right = torch.rand(21, generator=generator) < 0.7
    found = packed(evaluation(right, torch.arange(21) % 2))["right"]
    assert unpacked(found).equal(right)
    assert found["labels"] != packed(evaluation(right, torch.arange(21) // 2 % 2))["right"]["labels"]


def test_scores_are_kept_to_two_digits():
    generator = torch.Generator().manual_seed(0)
    nll = torch.rand(200, generator=generator) ** 8 * 20
    right = torch.rand(200, generator=generator) < 0.7
    target = torch.arange(200) % 2
    given = {**evaluation(right, target).scores, "confidence": (-nll).exp(), "nll": nll, "brier": nll / 10}
    found = unpacked_scores(packed(Evaluation(given)))
    torch.testing.assert_close(found["correctness"], right.double())
    for name in ("nll", "brier"):
        torch.testing.assert_close(found[name], given[name].double(), rtol=1 / 64, atol=1e-6)
    torch.testing.assert_close(1 - found["confidence"], 1 - given["confidence"].double(), rtol=1 / 64, atol=1e-6)


def test_the_error_of_any_metric_counts_the_sampling_of_examples():
    generator = torch.Generator().manual_seed(0)
    target, right = torch.arange(400) % 2, torch.ones(400, dtype=torch.bool)
    losses = torch.rand(400, generator=generator)  # the same for all seeds, which alone would tell of no error

    def row(method, seed, nll):
        found = Evaluation({**evaluation(right, target).scores, "nll": nll})
        return {"method": method, "seed": seed, "metrics": dict(found.metrics), **packed(found)}

    rows = [row("temperature", seed, torch.zeros(400)) for seed in range(3)]
    rows += [row("cvp", seed, losses) for seed in range(3)]
    found = compare_paired(rows)["cvp"]["nll"]
    assert found["error"] == pytest.approx(float(losses.std()) / 20, rel=0.2)
    for each in rows:
        del each["scores"]
    assert compare_paired(rows)["cvp"]["nll"]["error"] == pytest.approx(0, abs=1e-9)


def test_what_is_half_right_is_not_kept():
    found = evaluation(torch.ones(4, dtype=torch.bool), torch.arange(4) % 2)
    assert packed(Evaluation({**found.scores, "correctness": torch.full((4,), 0.5)})) == {}


def test_the_error_of_accuracy_counts_the_sampling_of_examples():
    target = torch.arange(100) % 2
    base = torch.ones(3, 100, dtype=torch.bool)
    worse = base.clone()
    worse[:, :4] = False  # every network errs in the same four: seeds tell nothing of how many others there are
    found = compare_paired(list(rows_of({"temperature": base, "cvp": worse}, target)))["cvp"]["accuracy"]
    assert found["difference"] == pytest.approx(-0.04)
    assert (found["won"], found["lost"]) == (0, 4)
    assert found["error"] == pytest.approx((0.04 * 0.96 / 99) ** 0.5)
    table = ordinary.table(list(rows_of({"temperature": base, "cvp-adam": worse}, target)))
    assert "won, lost" in table
    assert "| 0.0, 4.0 |" in table


def test_rows_of_other_examples_have_an_error_over_seeds():
    base, worse = torch.ones(2, 10, dtype=torch.bool), torch.zeros(2, 10, dtype=torch.bool)
    targets = torch.arange(10) % 2, torch.arange(10) // 2 % 2
    rows = [
        row
        for seed, y in enumerate(targets)
        for row in rows_of({"temperature": base, "cvp": worse}, y)
        if row["seed"] == seed
    ]
    found = compare_paired(rows)["cvp"]["accuracy"]
    assert found["error"] == 0
    assert "won" not in found


def test_the_two_way_error_is_not_too_small():
    """Seeds, examples and both together each have a part; the mean over many draws of the table varies by no more."""
    generator = torch.Generator().manual_seed(0)
    seeds, examples, both = (torch.randn(2000, *size, generator=generator) for size in ((5, 1), (1, 40), (5, 40)))
    tables = 0.2 * seeds + examples + both
    true = tables.mean((1, 2)).std()
    told = torch.tensor([two_way_error(table) for table in tables]).square().mean().sqrt()
    assert true < told < 1.2 * true


DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("rows", sorted((DOCS / "results" / "ordinary").glob("*-*.jsonl")), ids=lambda path: path.stem)
def test_the_page_shows_the_stored_rows(rows):
    assert ordinary.table(read_rows(rows)) in (DOCS / "ordinary.md").read_text()
