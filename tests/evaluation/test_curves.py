import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from varprop import metrics
from varprop.evaluation.curves import percentiles, reliability, staircase


def random_scores(seed, size=120, soft=False):
    rng = np.random.default_rng(seed)
    levels = (0, 0.3, 0.6, 0.9, 1) if soft else (0, 1)
    out = {}
    for prefix, length in (("", size), ("held_out_", size - 20)):
        confidence = rng.integers(1, 20, length) / 20  # many ties
        out[f"{prefix}confidence"] = confidence.astype(np.float32)
        right = rng.random(length) < confidence
        out[f"{prefix}correctness"] = np.where(right, rng.choice(levels[1:], length), 0.0)
    return out


def test_what_a_row_keeps_is_the_curve_at_each_percent():
    scores = random_scores(5, size=100)
    kept = percentiles(torch.from_numpy(scores["confidence"]), torch.from_numpy(scores["correctness"]))
    assert len(kept) == 100
    # With 100 examples, the mean over all sizes is the AURC, ties averaged.
    area = float(metrics.aurc(*(torch.from_numpy(scores[k]) for k in ("confidence", "correctness"))))
    assert np.mean(kept) == pytest.approx(area, abs=1e-6)
    assert kept[-1] == pytest.approx(1 - scores["correctness"].mean(), abs=1e-6)
    assert percentiles([0.5, 0.5], [1.0, 0.0]) == (0.5,) * 100


@pytest.mark.parametrize("soft", [False, True])
def test_bins_give_the_ece(soft):
    scores = [random_scores(seed, soft=soft) for seed in range(2)]
    found = reliability(scores)
    gaps = np.nan_to_num(abs(found.confidence - found.accuracy)) * found.share
    joined = [torch.from_numpy(np.concatenate([s[k] for s in scores])) for k in ("confidence", "correctness")]
    assert gaps.sum() == pytest.approx(float(metrics.ece(*joined)), abs=1e-9)
    assert found.share.sum() == pytest.approx(1)


def test_confidence_one_lies_in_the_last_bin():
    found = reliability([{"confidence": np.array([1.0, 0.0]), "correctness": np.array([1.0, 0.0])}])
    assert found.share.tolist() == [0.5] + [0] * 13 + [0.5]


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


@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([0.0, 0.01, 0.05, 0.1, 0.2, 0.25, 0.3, 0.5, 1.0]))
def test_the_staircase_finds_what_the_definition_does(seed, soft, budget):
    scores = random_scores(seed, soft=soft)
    steps = staircase(scores)
    step, expected = steps.at(budget), by_definition(scores, budget)
    assert (step is None) == (expected is None)
    if step is not None:
        assert steps.threshold[step] == expected[0]
        assert steps.answered[step] == expected[1]
        assert steps.errors[step] == pytest.approx(expected[2])
    if 0 < budget < 1:
        held_out = [torch.from_numpy(scores[f"held_out_{k}"]) for k in ("confidence", "correctness")]
        coverage = 0 if step is None else steps.held_out_coverage[step]
        assert coverage == pytest.approx(float(metrics.coverage_at_risk(*held_out, budget)))


def test_steps_rise_and_end_at_full_coverage():
    steps = staircase(random_scores(1))
    assert (np.diff(steps.held_out_risk) > 0).all()
    assert (np.diff(steps.held_out_coverage) > 0).all()
    assert (np.diff(steps.threshold) < 0).all()
    assert steps.held_out_coverage[-1] == 1


def test_without_held_out_scores_there_is_no_staircase():
    scores = random_scores(0)
    assert staircase({k: v for k, v in scores.items() if not k.startswith("held_out")}) is None
