"""Brier, NLL, BCE, accuracy: against scikit-learn and torch, and by hand where they have nothing to say."""

import math

import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss
from torch.nn import functional as F

from varprop.metrics import accuracy, bce, brier, nll, vqa_accuracy


def predictions(examples=500, classes=5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(examples, classes, generator=generator, dtype=torch.float64).mul(2).softmax(1)
    return probs.to(dtype), torch.randint(classes, (examples,), generator=generator)


def test_against_scikit_learn():
    probs, target = predictions()
    assert float(nll(probs, target)) == pytest.approx(log_loss(target, probs, labels=range(5)), rel=1e-12)
    score = brier_score_loss(target, probs, labels=range(5), scale_by_half=False)
    assert float(brier(probs, target)) == pytest.approx(score, rel=1e-12)


def test_bce_against_torch():
    probs, target = predictions()
    multi_hot = F.one_hot(target, 5) | (probs > 0.5)
    expected = F.binary_cross_entropy(probs, multi_hot.double(), reduction="sum") / len(probs)
    for kind in (torch.int64, torch.bool, torch.float32):
        assert float(bce(probs, multi_hot.to(kind))) == pytest.approx(float(expected), rel=1e-12)
    soft = probs.flip(1)
    expected = F.binary_cross_entropy(probs, soft, reduction="sum") / len(probs)
    assert float(bce(probs, soft)) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("metric", [brier, nll])
def test_one_hot_targets_are_class_indices(metric):
    probs, target = predictions()
    one_hot = F.one_hot(target, 5)
    for soft in (one_hot, one_hot.float(), one_hot.bool()):
        assert float(metric(probs, soft)) == pytest.approx(float(metric(probs, target)), rel=1e-13)


def test_soft_targets():
    probs = torch.tensor([[0.7, 0.3]], dtype=torch.float64)
    soft = torch.tensor([[0.4, 0.6]], dtype=torch.float64)
    assert float(brier(probs, soft)) == pytest.approx(2 * 0.09, rel=1e-13)
    assert float(nll(probs, soft)) == pytest.approx(-(0.4 * math.log(0.7) + 0.6 * math.log(0.3)), rel=1e-13)


def test_the_impossible_costs_infinitely_much_and_the_rest_nothing():
    probs = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    assert float(nll(probs, torch.tensor([1, 0]))) == math.inf
    assert float(nll(probs, torch.tensor([0, 0]))) == pytest.approx(math.log(2) / 2)
    assert float(nll(probs, torch.tensor([[1.0, 0.0], [1.0, 0.0]]))) == pytest.approx(math.log(2) / 2)
    assert float(nll(probs, torch.tensor([[0.9, 0.1], [1.0, 0.0]]))) == math.inf
    assert float(bce(probs, torch.tensor([[0, 0], [1, 1]]))) == math.inf
    assert float(bce(probs, torch.tensor([[1, 1], [1, 1]]))) == math.inf
    assert float(bce(probs, torch.tensor([[1, 0], [1, 1]]))) == pytest.approx(math.log(2))


def test_brier_does_not_cancel_where_the_prediction_is_right():
    small = 1e-9
    probs = torch.tensor([[1 - small, small]], dtype=torch.float64)
    assert float(brier(probs, torch.tensor([0]))) == pytest.approx(2 * small**2, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_loses_only_what_its_rounding_lost(dtype):
    probs, target = predictions(dtype=dtype)
    exact = probs.double() / probs.double().sum(1, keepdim=True)
    tolerance = 4 * torch.finfo(dtype).eps
    assert float(brier(probs, target)) == pytest.approx(float(brier(exact, target)), rel=tolerance)
    assert float(nll(probs, target)) == pytest.approx(float(nll(exact, target)), rel=tolerance)


@pytest.mark.parametrize("metric", [brier, nll])
def test_inputs_are_left_alone(metric):
    probs, target = predictions()
    before = probs.clone()
    result = metric(probs.requires_grad_(), target)
    assert torch.equal(probs, before)
    assert not result.requires_grad


def test_accuracy():
    assert float(accuracy(torch.tensor([True, False, True, True]))) == 0.75
    assert float(accuracy(torch.tensor([0.3, 0.9], dtype=torch.float64))) == pytest.approx(0.6)


def leave_one_out(matches, annotators):
    """The definition, annotator by annotator."""
    gave = [True] * matches + [False] * (annotators - matches)
    values = [min(1, sum(gave[:i] + gave[i + 1 :]) / 3) for i in range(annotators)]
    return sum(values) / annotators


@pytest.mark.parametrize("annotators", [2, 3, 5, 10])
def test_vqa_accuracy_is_the_mean_over_leave_one_out(annotators):
    expected = [leave_one_out(matches, annotators) for matches in range(annotators + 1)]
    assert vqa_accuracy(torch.arange(annotators + 1), annotators).tolist() == pytest.approx(expected, rel=1e-14, abs=0)


def test_vqa_accuracy_with_ten_annotators():
    assert vqa_accuracy(torch.arange(11)).tolist() == [0, 0.3, 0.6, 0.9, 1, 1, 1, 1, 1, 1, 1]
    assert vqa_accuracy(torch.ones(2, 3, dtype=torch.uint8)).shape == (2, 3)
