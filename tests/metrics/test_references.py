"""Other libraries' metrics, where they mean the same; what they do differently is said here."""

import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from varprop import metrics


def predictions(examples, classes=4):
    generator = torch.Generator().manual_seed(examples)
    probs = torch.randn(examples, classes, generator=generator, dtype=torch.float64).mul(2).softmax(1)
    target = torch.multinomial(probs, 1, generator=generator).squeeze(1)
    confidence, answer = probs.max(1)
    return probs, target, confidence, answer == target


@pytest.mark.parametrize("examples", [50, 1000, 1003])
def test_ece_of_torchmetrics(examples):
    """Equal while no confidence is 1. Its sums are float32."""
    probs, target, confidence, correct = predictions(examples)
    expected = float(multiclass_calibration_error(probs, target, num_classes=4, n_bins=15))
    assert float(metrics.ece(confidence, correct)) == pytest.approx(expected, rel=1e-4)


def test_ece_of_torchmetrics_is_wrong_for_a_confidence_of_one():
    """torchmetrics 1.9 counts it in a bin of its own, beyond the last: right and wrong answers no longer cancel.

    By hand: one bin with confidences 1, 1, 0.95, two of three right: |2.95 − 2| / 3.
    """
    probs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.95, 0.05]])
    target = torch.tensor([0, 1, 0])
    assert float(metrics.ece(probs[:, 0], target == 0)) == pytest.approx(0.95 / 3, rel=1e-6)
    theirs = float(multiclass_calibration_error(probs, target, num_classes=2, n_bins=15))
    assert theirs == pytest.approx(0.35, rel=1e-6), "mended upstream? then say so where this is mentioned"


@pytest.mark.parametrize("examples", [50, 1000, 1003])
def test_against_netcal(examples):
    """ECE is the same. Its "ACE" is the unweighted mean gap over bins of equal width: another quantity."""
    netcal = pytest.importorskip("netcal.metrics")
    _, _, confidence, correct = predictions(examples)
    expected = netcal.ECE(15).measure(confidence.numpy(), correct.long().numpy())
    assert float(metrics.ece(confidence, correct)) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("examples", [50, 1000, 1003])
def test_against_torch_uncertainty(examples):
    """Coverage at risk is the same, in float32. Its AURC is the trapezoid over coverages 1/N … 1, divided by 1 − 1/N,
    and leaves ties to the sort; from our curve the same rule gives the same number.
    """
    theirs = pytest.importorskip("torch_uncertainty.metrics.classification")
    probs, target, confidence, correct = predictions(examples)
    for risk in (0.05, 0.1, 0.2):
        covered = theirs.CovAtxRisk(risk)
        covered.update(probs, target)
        assert float(metrics.coverage_at_risk(confidence, correct, risk)) == pytest.approx(float(covered.compute()))
    area = theirs.AURC()
    area.update(probs, target)
    curve = metrics.risk_coverage_curve(confidence, correct)
    trapezoid = float(torch.trapezoid(curve.risk, curve.coverage)) / (1 - 1 / examples)
    assert trapezoid == pytest.approx(float(area.compute()), rel=1e-5)
