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


@pytest.mark.parametrize("examples", [50, 1003])
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
