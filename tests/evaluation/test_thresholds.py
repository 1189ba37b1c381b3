"""What follows from the scores of each example: thresholds, the curve that a row keeps, bins of confidence."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import varprop as vp
from varprop import metrics
from varprop.evaluation.evaluate import risk_curve
from varprop.evaluation.thresholds import certify, meet
from varprop.report.figures import reliability_bins


def random_scores(seed, size=120, soft=False):
    """Scores with many ties, of a predictor that is right as often as it says."""
    rng = np.random.default_rng(seed)
    levels = (0, 0.3, 0.6, 0.9, 1) if soft else (0, 1)
    out = {}
    for prefix, length in (("", size), ("held_out_", size - 20)):
        confidence = rng.integers(1, 20, length) / 20
        out[f"{prefix}confidence"] = confidence.astype(np.float32)
        right = rng.random(length) < confidence
        out[f"{prefix}correctness"] = np.where(right, rng.choice(levels[1:], length), 0.0)
    return out


def by_definition(scores, budget):
    """The largest held-out coverage whose risk is within the budget, and what it does to the test set."""
    confidence, errors = scores["held_out_confidence"], 1 - scores["held_out_correctness"]
    allowed = [
        t for t in np.unique(confidence) if errors[confidence >= t].sum() <= budget * (confidence >= t).sum() + 1e-6
    ]
    if not allowed:
        return None
    answered = scores["confidence"] >= allowed[0]
    return allowed[0], int(answered.sum()), float((1 - scores["correctness"])[answered].sum())


@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([0.01, 0.05, 0.1, 0.2, 0.25, 0.3, 0.5]))
def test_what_meets_the_risk_is_what_the_definition_says(seed, soft, budget):
    scores = random_scores(seed, soft=soft)
    found, expected = meet(scores, budget), by_definition(scores, budget)
    assert (found is None) == (expected is None)
    if found is not None:
        assert (found.threshold, found.answered) == expected[:2]
        assert found.errors == pytest.approx(expected[2])
    held_out = [torch.from_numpy(scores[f"held_out_{k}"]) for k in ("confidence", "correctness")]
    coverage = 0 if found is None else np.mean(scores["held_out_confidence"] >= found.threshold)
    assert coverage == pytest.approx(float(metrics.coverage_at_risk(*held_out, budget)))


class Answers(torch.nn.Module):
    """Its inputs are the probabilities of the first class."""

    def forward(self, p):
        return torch.stack([p.log(), (1 - p).log()], -1)


def test_what_is_certified_is_what_selective_answers():
    rng = np.random.default_rng(0)
    p, right = 0.5 + 0.5 * rng.random((2, 2000)), rng.random((2, 2000))
    held_out, test = (
        (torch.tensor(q).float(), torch.tensor((u > q).astype(int))) for q, u in zip(p, right, strict=True)
    )
    mean = vp.MeanNetwork(Answers())
    before, after = (vp.evaluate(mean, [part], progress=False) for part in (held_out, test))
    scores = {name: getattr(after, name).numpy() for name in ("confidence", "correctness")}
    scores |= {f"held_out_{name}": getattr(before, name).numpy() for name in ("confidence", "correctness")}
    found, selective = certify(scores, 0.1), vp.Selective(mean).fit([held_out], risk=0.1)
    decision = selective(test[0])
    assert found.threshold == selective.guarantee.threshold
    assert found.answered == int(decision.answered.sum()) > 100
    assert found.errors == int((decision.label != test[1])[decision.answered].sum())
    assert found.answered < meet(scores, 0.1).answered  # a promise costs coverage
    assert certify(scores, 1e-4) is None  # too few examples to promise that


def test_what_a_row_keeps_is_the_curve_at_each_percent():
    scores = random_scores(5, size=100)
    confidence, correctness = (torch.from_numpy(scores[name]) for name in ("confidence", "correctness"))
    kept = risk_curve(confidence, correctness)
    # With 100 examples, the mean over all sizes is the AURC, ties averaged.
    assert np.mean(kept) == pytest.approx(float(metrics.aurc(confidence, correctness)), abs=1e-6)
    assert kept[-1] == pytest.approx(1 - scores["correctness"].mean(), abs=1e-6)
    assert risk_curve(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0])) == (0.5,) * 100


@pytest.mark.parametrize("soft", [False, True])
def test_bins_give_the_ece(soft):
    scores = [random_scores(seed, soft=soft) for seed in range(2)]
    found = reliability_bins(scores)
    gaps = (found["confidence"] - found["accuracy"]).abs().fillna(0) * found["share"]
    joined = [torch.from_numpy(np.concatenate([s[k] for s in scores])) for k in ("confidence", "correctness")]
    assert gaps.sum() == pytest.approx(float(metrics.ece(*joined)), abs=1e-9)
    assert found["share"].sum() == pytest.approx(1)


def test_confidence_one_lies_in_the_last_bin():
    found = reliability_bins([{"confidence": np.array([1.0, 0.0]), "correctness": np.array([1.0, 0.0])}])
    assert found["share"].tolist() == [0.5] + [0] * 13 + [0.5]
