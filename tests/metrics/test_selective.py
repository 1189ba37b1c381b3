"""Risk, coverage and reliability against hand-computed values and brute force."""

import itertools
import math

import pytest
import torch

from varprop.metrics import aurc, best_threshold, coverage_at_risk, effective_reliability, risk_coverage_curve


def tensors(*rows):
    return [torch.tensor(row, dtype=torch.float64) for row in rows]


def risk_of_prefixes(correctness):
    return [1 - sum(correctness[:k]) / k for k in range(1, len(correctness) + 1)]


def aurc_over_all_orders(confidence, correctness):
    """The definition: sort, in every order that ties allow, and average."""
    values = []
    for order in itertools.permutations(range(len(confidence))):
        ranked = [confidence[i] for i in order]
        if ranked == sorted(ranked, reverse=True):
            risks = risk_of_prefixes([correctness[i] for i in order])
            values.append(sum(risks) / len(risks))
    return sum(values) / len(values)


def test_aurc_by_hand():
    confidence, correctness = tensors([0.9, 0.1, 0.5, 0.7], [1, 1, 0, 1])
    assert float(aurc(confidence, correctness)) == pytest.approx((0 + 0 + 1 / 3 + 1 / 4) / 4, rel=1e-14)


@pytest.mark.parametrize("seed", range(4))
def test_aurc_is_the_average_over_all_orders_of_ties(seed):
    generator = torch.Generator().manual_seed(seed)
    confidence = torch.randint(0, 3, (6,), generator=generator).double()
    correctness = torch.rand(6, generator=generator, dtype=torch.float64)
    expected = aurc_over_all_orders(confidence.tolist(), correctness.tolist())
    assert float(aurc(confidence, correctness)) == pytest.approx(expected, rel=1e-12)


def test_curve_has_a_point_per_distinct_confidence():
    confidence, correctness = tensors([0.3, 0.8, 0.9, 0.8], [0.5, 0, 1, 1])
    curve = risk_coverage_curve(confidence, correctness)
    assert curve.threshold.tolist() == [0.9, 0.8, 0.3]
    assert curve.coverage.tolist() == [0.25, 0.75, 1.0]
    assert curve.risk.tolist() == pytest.approx([0, 1 / 3, 1.5 / 4], rel=1e-14)


def test_coverage_at_risk_takes_the_largest_coverage_though_the_risk_rises_before():
    """Risks 1, 1/2, 1/3, 1/4, 2/5: only full coverage and the first two exceed 0.34."""
    confidence, correctness = tensors([5.0, 4, 3, 2, 1], [0, 1, 1, 1, 0])
    assert float(coverage_at_risk(confidence, correctness, 0.34)) == 4 / 5
    assert float(coverage_at_risk(confidence, correctness, 0.41)) == 1
    assert float(coverage_at_risk(confidence, correctness, 0.2)) == 0


def test_coverage_at_risk_never_splits_a_tie():
    confidence, correctness = tensors([0.9, 0.5, 0.5, 0.5], [1, 1, 1, 0])
    assert float(coverage_at_risk(confidence, correctness, 0.1)) == 0.25
    assert float(coverage_at_risk(confidence.flip(0), correctness.flip(0), 0.1)) == 0.25


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float64])
def test_a_risk_of_exactly_the_target_is_kept(dtype):
    """0.29·100 < 29 in floating point. One error more is too many."""
    for percent in range(1, 100):
        correctness = torch.ones(100)
        correctness[torch.randperm(100, generator=torch.Generator().manual_seed(percent))[:percent]] = 0
        assert float(coverage_at_risk(torch.linspace(0, 1, 100), correctness.to(dtype), percent / 100)) == 1
        correctness[correctness.nonzero()[0]] = 0
        assert float(coverage_at_risk(torch.zeros(100), correctness.to(dtype), percent / 100)) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("value", "risk"), [(0.95, 0.05), (0.9, 0.1), (0.7, 0.3), (0.6, 0.4), (0.995, 0.005)])
def test_a_soft_risk_of_exactly_the_target_is_kept(value, risk, dtype):
    assert float(coverage_at_risk(torch.zeros(30), torch.full((30,), value, dtype=dtype), risk)) == 1
    assert float(coverage_at_risk(torch.zeros(30), torch.full((30,), value - 1e-6, dtype=dtype), risk)) == 0


def test_one_error_in_a_million_too_many_is_refused():
    correctness = torch.ones(10**6)
    correctness[:5000] = 0
    assert float(coverage_at_risk(torch.zeros(10**6), correctness, 0.005)) == 1
    assert float(coverage_at_risk(torch.zeros(10**6 - 1), correctness[:-1], 0.005)) == 0, "5000 in 999,999"
    correctness[5000] = 0
    assert float(coverage_at_risk(torch.zeros(10**6), correctness, 0.005)) == 0


def test_effective_reliability_by_hand():
    confidence, correctness = tensors([0.9, 0.8, 0.7, 0.2, 0.1], [1, 0.3, 0, 0, 1])
    assert float(effective_reliability(confidence, correctness, 10, 0.7)) == pytest.approx((1 + 0.3 - 10) / 5)
    assert float(effective_reliability(confidence, correctness, 10, 0.71)) == pytest.approx((1 + 0.3) / 5)
    assert float(effective_reliability(confidence, correctness, 0, -math.inf)) == pytest.approx(2.3 / 5)
    assert float(effective_reliability(confidence, correctness, 10, math.inf)) == 0


def test_a_threshold_answers_a_float32_confidence_of_its_own_value():
    confidence = torch.tensor([0.9, 0.1], dtype=torch.float32)
    assert float(effective_reliability(confidence, torch.ones(2), 1, 0.9)) == 0.5


@pytest.mark.parametrize("cost", [0, 10, 0.5])
@pytest.mark.parametrize("seed", range(4))
def test_best_threshold_against_a_search_over_all(cost, seed):
    generator = torch.Generator().manual_seed(seed)
    confidence = torch.randint(0, 8, (20,), generator=generator).float()
    correctness = torch.randint(0, 4, (20,), generator=generator) / 4
    candidates = [math.inf, *sorted(set(confidence.tolist()), reverse=True)]
    found = [float(effective_reliability(confidence, correctness, cost, t)) for t in candidates]
    # multiples of 1/4 and small costs are exact, so equal means equal; the last of the best covers most
    expected = [t for t, value in zip(candidates, found, strict=True) if value == max(found)][-1]
    assert best_threshold(confidence, correctness, cost) == expected


def test_best_threshold_ties_up_to_rounding_go_to_more_coverage():
    """0.8 − 0.8 + 0.7 + 0.1 is less than 0.8 in floating point."""
    confidence, correctness = tensors([5.0, 4, 3, 2], [0.8, 0, 0.7, 0.1])
    assert best_threshold(confidence, correctness, 0.8) == 2


def test_answering_nothing_is_the_best_when_all_else_loses():
    confidence, correctness = tensors([3.0, 2, 1], [0, 1, 0])
    assert best_threshold(confidence, correctness, 10) == math.inf
    assert best_threshold(confidence, torch.zeros(3), 0) == 1, "losing nothing is a tie, and answering covers more"
