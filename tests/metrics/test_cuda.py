"""On a GPU the metrics are those of the CPU."""

import pytest
import torch

from tests.metrics.test_accumulators import CASES, predicted, scored
from varprop import metrics

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.parametrize(("metric", "function", "data"), CASES)
def test_functions_and_classes(metric, function, data):
    whole = data(1_000)
    expected, found = function(*whole), metric().cuda()
    torch.testing.assert_close(function(*(x.cuda() for x in whole)).cpu(), expected, rtol=1e-12, atol=1e-14)
    for part in torch.arange(1_000).chunk(3):
        found.update(*(x[part].cuda() for x in whole))
    assert found.compute().is_cuda
    torch.testing.assert_close(found.compute().cpu(), expected, rtol=1e-12, atol=1e-14)
    found.cpu()  # states follow
    found.update(*whole)
    assert not found.compute().is_cuda


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_thresholds_and_ties_in_every_dtype(dtype):
    confidence, correctness = scored(1_000, dtype=dtype)
    for function in (
        lambda a, b: torch.stack(metrics.risk_coverage_curve(a, b)[:2]),
        lambda a, b: metrics.effective_reliability(a, b, 10, 0.5),
        lambda a, b: torch.tensor(metrics.best_threshold(a, b, 1)),
        metrics.ece,
        metrics.ace,
    ):
        found = function(confidence.cuda(), correctness.cuda())
        torch.testing.assert_close(found.cpu(), function(confidence, correctness), rtol=1e-12, atol=1e-14)


def test_class_indices_and_vqa():
    probs, _ = predicted(1_000)
    target = torch.arange(1_000) % 4
    for function in (metrics.brier, metrics.nll):
        torch.testing.assert_close(function(probs.cuda(), target.cuda()).cpu(), function(probs, target))
    assert torch.equal(metrics.vqa_accuracy(target.cuda()).cpu(), metrics.vqa_accuracy(target))
