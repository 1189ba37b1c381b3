"""Input that is refused, and what the message says."""

import math

import pytest
import torch

from varprop import metrics
from varprop.errors import DeviceMismatchError, MetricError

CONFIDENCE, CORRECTNESS = torch.tensor([0.2, 0.9, 0.5]), torch.tensor([0.0, 1.0, 1.0])
PROBS, TARGET = torch.tensor([[0.2, 0.8], [0.5, 0.5], [1.0, 0.0]]), torch.tensor([0, 1, 0])
SCORED = {
    "aurc": metrics.aurc,
    "curve": metrics.risk_coverage_curve,
    "coverage_at_risk": lambda a, b: metrics.coverage_at_risk(a, b, 0.1),
    "effective_reliability": lambda a, b: metrics.effective_reliability(a, b, 10, 0.5),
    "best_threshold": lambda a, b: metrics.best_threshold(a, b, 10),
    "ece": metrics.ece,
    "ace": metrics.ace,
}
OF_CLASSES = {"brier": metrics.brier, "nll": metrics.nll}


def bad_examples():
    nothing = torch.empty(0)
    yield nothing, nothing, "no examples"
    yield torch.tensor([0.2, math.nan, 0.5]), CORRECTNESS, r"confidence\[1\] is nan"
    yield torch.tensor([0.2, math.inf, 0.5]), CORRECTNESS, r"confidence\[1\] is inf"
    yield CONFIDENCE, CORRECTNESS[:2], "confidence has 3 examples, correctness 2"
    yield CONFIDENCE[:, None], CORRECTNESS, r"confidence.*shape \[N\], not \[3, 1\]"
    yield CONFIDENCE, CORRECTNESS[:, None], r"correctness.*shape \[N\], not \[3, 1\]"
    yield torch.tensor(0.5), torch.tensor(1.0), r"not \[\]"
    yield CONFIDENCE, CORRECTNESS * 2, r"correctness\[1\] is 2 \(and 1 more\)"
    yield CONFIDENCE, torch.tensor([0, 3, 1]), r"correctness\[1\] is 3"
    yield CONFIDENCE, torch.tensor([math.nan, 0, 0]), r"correctness\[0\] is nan"
    yield torch.tensor([0, 1, 1]), CORRECTNESS, "confidence must be floating point"
    yield CONFIDENCE, CORRECTNESS.to(torch.complex64), "must be real"
    yield [0.5], [1.0], "confidence must be a tensor, not list"


@pytest.mark.parametrize(("confidence", "correctness", "message"), [*bad_examples()])
@pytest.mark.parametrize("metric", [metrics.aurc, metrics.ece])
def test_bad_examples(metric, confidence, correctness, message):
    with pytest.raises(MetricError, match=message):
        metric(confidence, correctness)


@pytest.mark.parametrize("metric", SCORED.values(), ids=SCORED)
def test_every_function_looks_at_its_examples(metric):
    with pytest.raises(MetricError, match="no examples"):
        metric(torch.empty(0), torch.empty(0))
    with pytest.raises(MetricError, match=r"confidence\[1\] is nan"):
        metric(torch.tensor([0.2, math.nan, 0.5]), CORRECTNESS)


@pytest.mark.parametrize("metric", [metrics.ece, metrics.ace])
@pytest.mark.parametrize("value", [-0.1, 1.0001])
def test_calibration_is_of_probabilities(metric, value):
    with pytest.raises(MetricError, match=r"confidence must lie in \[0, 1\].*confidence\[0\]"):
        metric(torch.tensor([value, 0.5]), torch.ones(2))


def test_selection_is_by_any_number():
    confidence = torch.tensor([-3.0, 100.0, 0.5])
    assert float(metrics.aurc(confidence, CORRECTNESS)) == float(metrics.aurc(CONFIDENCE, CORRECTNESS))


def bad_predictions():
    three = torch.full((3, 2), 0.5)
    yield torch.tensor([[3.0, -1.0]] * 3), TARGET, r"probs must lie in \[0, 1\].*probs\[0, 0\] is 3"
    yield torch.tensor([[math.nan, 1.0]] * 3), TARGET, r"probs\[0, 0\] is nan \(and 2 more\)"
    yield torch.tensor([[0.5, 0.5], [0.5, 0.4], [1, 0]]), TARGET, r"probs\[1\] sums to 0.9, not 1"
    yield torch.ones(3, 1), torch.zeros(3, dtype=torch.int64), "single class"
    yield torch.ones(3), TARGET, r"shape \[examples, classes\], not \[3\]"
    yield PROBS, TARGET[:, None], r"target has shape \[3, 1\].*class indices \[3\]"
    yield PROBS, TARGET[:2], r"target has shape \[2\], probs \[3, 2\]"
    yield PROBS, TARGET.float(), "must be integers, not torch.float32"
    yield PROBS, TARGET.bool(), "must be integers, not torch.bool"
    yield PROBS, TARGET + 1, r"0 to 1, but target\[1\] is 2"
    yield PROBS, TARGET - 1, r"target\[0\] is -1 \(and 1 more\)"
    yield PROBS, three * 0.9, r"target\[0\] sums to 0.9"
    yield PROBS, torch.tensor([[1.5, -0.5]] * 3), "target must lie in"
    yield PROBS, torch.tensor([[1, 1]] * 3), r"target\[0\] sums to 2"
    yield torch.tensor([[1, 0]] * 3), TARGET, "probs must be floating point"
    yield torch.empty(0, 2), torch.empty(0, dtype=torch.int64), "no examples"
    yield [[0.5, 0.5]], [0], "probs must be a tensor"


@pytest.mark.parametrize(("probs", "target", "message"), [*bad_predictions()])
@pytest.mark.parametrize("metric", OF_CLASSES.values(), ids=OF_CLASSES)
def test_bad_predictions(metric, probs, target, message):
    with pytest.raises(MetricError, match=message):
        metric(probs, target)


@pytest.mark.parametrize(
    ("probs", "target", "message"),
    [
        (PROBS, TARGET, r"target has shape \[3\], probs \[3, 2\]"),
        (PROBS, torch.ones(3, 1), r"target has shape \[3, 1\]"),
        (PROBS, 2 * PROBS, "target must lie in"),
        (2 * PROBS, PROBS, "probs must lie in"),
        (torch.empty(0, 2), torch.empty(0, 2), "no examples"),
        (torch.ones(3), torch.ones(3), r"shape \[examples, classes\]"),
    ],
)
def test_bad_multi_label_predictions(probs, target, message):
    with pytest.raises(MetricError, match=message):
        metrics.bce(probs, target)


def test_probabilities_of_low_precision_may_miss_one_by_their_rounding():
    thirds = torch.full((1, 3), 1 / 3)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        metrics.brier(thirds.to(dtype), torch.tensor([0]))
    with pytest.raises(MetricError, match="sums to"):
        metrics.brier(torch.tensor([[0.33, 0.33, 0.33]]), torch.tensor([0]))


@pytest.mark.parametrize("risk", [0, 1, -0.1, 1.5, math.nan, "low", None, True])
def test_bad_risk(risk):
    with pytest.raises(MetricError, match="risk must"):
        metrics.coverage_at_risk(CONFIDENCE, CORRECTNESS, risk)
    with pytest.raises(MetricError, match="risk must"):
        metrics.CoverageAtRisk(risk)


@pytest.mark.parametrize("cost", [-1, math.nan, math.inf, "high"])
def test_bad_cost(cost):
    for call in (
        lambda: metrics.effective_reliability(CONFIDENCE, CORRECTNESS, cost, 0.5),
        lambda: metrics.best_threshold(CONFIDENCE, CORRECTNESS, cost),
        lambda: metrics.EffectiveReliability(cost, 0.5),
    ):
        with pytest.raises(MetricError, match="cost must be"):
            call()


@pytest.mark.parametrize("threshold", [math.nan, None, torch.ones(2)])
def test_bad_threshold(threshold):
    with pytest.raises(MetricError, match="threshold must be a number"):
        metrics.effective_reliability(CONFIDENCE, CORRECTNESS, 1, threshold)
    with pytest.raises(MetricError, match="threshold must be a number"):
        metrics.EffectiveReliability(1, threshold)


@pytest.mark.parametrize("bins", [0, -1, 2.5, True, None])
def test_bad_bins(bins):
    for call in (
        lambda: metrics.ece(CONFIDENCE, CORRECTNESS, bins),
        lambda: metrics.ace(CONFIDENCE, CORRECTNESS, bins),
        lambda: metrics.ECE(bins),
        lambda: metrics.ACE(bins),
    ):
        with pytest.raises(MetricError, match="bins must be a whole number"):
            call()


@pytest.mark.parametrize(
    ("matches", "annotators", "message"),
    [
        (torch.tensor([11]), 10, "between 0 and the 10 annotators"),
        (torch.tensor([-1]), 10, "between 0 and the 10 annotators"),
        (torch.tensor([0.5]), 10, "whole numbers"),
        ([1, 2], 10, "whole numbers"),
        (torch.tensor([1]), 1, "annotators must be a whole number, at least 2"),
        (torch.tensor([1]), 3.0, "annotators must be a whole number"),
    ],
)
def test_bad_annotations(matches, annotators, message):
    with pytest.raises(MetricError, match=message):
        metrics.vqa_accuracy(matches, annotators)


@pytest.mark.parametrize("correctness", [torch.empty(0), torch.tensor([2.0]), torch.ones(3, 1), torch.tensor(math.nan)])
def test_bad_correctness(correctness):
    with pytest.raises(MetricError):
        metrics.accuracy(correctness)


def test_tensors_on_different_devices():
    with pytest.raises(DeviceMismatchError, match="confidence is on cpu, correctness is on meta"):
        metrics.inputs._one_device(confidence=CONFIDENCE, correctness=CORRECTNESS.to("meta"))
