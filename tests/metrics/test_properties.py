"""What holds for every input."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from varprop.metrics import ace, aurc, best_threshold, coverage_at_risk, ece, effective_reliability

SOFT = st.sampled_from([0.0, 0.3, 0.6, 0.9, 1.0])
SETTINGS = settings(deadline=None, max_examples=50)
RISKS = st.sampled_from([0.005, 0.05, 0.1, 0.25, 0.5])


@st.composite
def examples(draw):
    """Confidences on a grid of tenths, so that ties are common, and soft correctness."""
    size = draw(st.integers(1, 40))
    confidence = draw(st.lists(st.integers(0, 10), min_size=size, max_size=size))
    correctness = draw(st.lists(SOFT, min_size=size, max_size=size))
    return torch.tensor(confidence, dtype=torch.float64) / 10, torch.tensor(correctness, dtype=torch.float64)


def all_metrics(confidence, correctness, risk=0.1):
    return [
        float(aurc(confidence, correctness)),
        float(coverage_at_risk(confidence, correctness, risk)),
        float(effective_reliability(confidence, correctness, 10, 0.5)),
        best_threshold(confidence, correctness, 10),
        float(ece(confidence, correctness)),
        float(ace(confidence, correctness, bins=4)),
    ]


@SETTINGS
@given(examples(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(pair, random):
    confidence, correctness = pair
    order = list(range(len(confidence)))
    random.shuffle(order)
    shuffled = all_metrics(confidence[order], correctness[order])
    assert shuffled == pytest.approx(all_metrics(confidence, correctness), rel=1e-12, abs=1e-14)


@SETTINGS
@given(examples(), RISKS)
def test_bounds(pair, risk):
    confidence, correctness = pair
    errors = 1 - correctness
    area = float(aurc(confidence, correctness))
    assert float(errors.min()) - 1e-14 <= area <= float(errors.max()) + 1e-14
    assert 0 <= float(coverage_at_risk(confidence, correctness, risk)) <= 1
    assert 0 <= float(ece(confidence, correctness)) <= 1
    # Splitting bins cannot lower the sum of absolute gaps, and one bin has the gap of the means.
    whole = abs(float((confidence - correctness).mean()))
    each = float((confidence - correctness).abs().mean())
    for metric in (ece, ace):
        assert whole - 1e-14 <= float(metric(confidence, correctness)) <= each + 1e-14
    assert -10 <= float(effective_reliability(confidence, correctness, 10, 0.5)) <= 1


@SETTINGS
@given(examples(), RISKS)
def test_only_the_ranking_matters_for_selection(pair, risk):
    confidence, correctness = pair
    for transform in (lambda x: 3 * x - 7, torch.exp, torch.logit, lambda x: x**3, lambda x: x.float()):
        moved = transform(confidence.clamp(0.001, 0.999))
        reference = confidence.clamp(0.001, 0.999)
        assert float(aurc(moved, correctness)) == float(aurc(reference, correctness))
        assert float(coverage_at_risk(moved, correctness, risk)) == float(
            coverage_at_risk(reference, correctness, risk)
        )


@SETTINGS
@given(examples())
def test_ranking_by_correctness_itself_is_the_best(pair):
    confidence, correctness = pair
    assert float(aurc(correctness, correctness)) <= float(aurc(confidence, correctness)) + 1e-14
    assert float(aurc(-correctness, correctness)) >= float(aurc(confidence, correctness)) - 1e-14


@SETTINGS
@given(examples(), RISKS, RISKS)
def test_more_risk_allows_more_coverage(pair, one, other):
    covered = [float(coverage_at_risk(*pair, risk)) for risk in sorted([one, other])]
    assert covered[0] <= covered[1]


@SETTINGS
@given(examples(), st.sampled_from([0, 1, 10]))
def test_no_threshold_beats_the_best(pair, cost):
    best = float(effective_reliability(*pair, cost, best_threshold(*pair, cost)))
    assert best >= 0
    for threshold in torch.linspace(0, 1, 11).tolist():
        assert float(effective_reliability(*pair, cost, threshold)) <= best + 1e-12


def test_strided_input():
    confidence, correctness = torch.rand(2, 50, 2, generator=torch.Generator().manual_seed(0))
    expected = all_metrics(confidence[:, 0].contiguous(), correctness[:, 0].contiguous())
    assert all_metrics(confidence[:, 0], correctness[:, 0]) == expected


@pytest.mark.parametrize("soft", [False, True])
def test_float32_with_many_examples(soft):
    """Inputs that float32 holds exactly: what is left is the accumulation, which is in float64."""
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(200_000, generator=generator)
    correctness = (
        torch.rand(200_000, generator=generator) if soft else torch.rand(200_000, generator=generator) < confidence
    )
    narrow = all_metrics(confidence, correctness, risk=0.3)
    wide = all_metrics(confidence.double(), correctness.double(), risk=0.3)
    assert narrow == pytest.approx(wide, rel=1e-9)
