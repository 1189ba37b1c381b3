"""On a GPU the metrics are those of the CPU."""

import pytest
import torch

from varprop import metrics

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
FUNCTIONS = {
    "aurc": metrics.aurc,
    "curve": lambda a, b: torch.stack(metrics.risk_coverage_curve(a, b)[:2]),
    "coverage_at_risk": lambda a, b: metrics.coverage_at_risk(a, b, 0.2),
    "effective_reliability": lambda a, b: metrics.effective_reliability(a, b, 10, 0.5),
    "best_threshold": lambda a, b: torch.tensor(metrics.best_threshold(a, b, 1)),
    "ece": metrics.ece,
    "ace": metrics.ace,
    "accuracy": lambda _, b: metrics.accuracy(b),
}
SCORES = {"brier": metrics.brier, "nll": metrics.nll}
CLASSES = {
    "AURC": metrics.AURC,
    "CoverageAtRisk": lambda: metrics.CoverageAtRisk(0.2),
    "EffectiveReliability": lambda: metrics.EffectiveReliability(10, 0.5),
    "ECE": metrics.ECE,
    "ACE": metrics.ACE,
    "Accuracy": metrics.Accuracy,
}


def scored(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    confidence = torch.randint(0, 200, (1_000,), generator=generator) / 200
    return confidence.to(dtype), torch.randint(0, 4, (1_000,), generator=generator) / 3


def predicted():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1_000, 5, generator=generator).softmax(1), torch.randint(5, (1_000,), generator=generator)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_of_confidence(function, dtype):
    data = scored(dtype)
    found = function(*(x.cuda() for x in data))
    torch.testing.assert_close(found.cpu(), function(*data), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("function", SCORES.values(), ids=SCORES)
def test_scores(function):
    probs, target = predicted()
    for truth in (target, torch.nn.functional.one_hot(target, 5)):
        torch.testing.assert_close(
            function(probs.cuda(), truth.cuda()).cpu(), function(probs, truth), rtol=1e-12, atol=0
        )


def test_bce_and_vqa():
    probs, target = predicted()
    truth = torch.nn.functional.one_hot(target, 5)
    torch.testing.assert_close(metrics.bce(probs.cuda(), truth.cuda()).cpu(), metrics.bce(probs, truth))
    assert torch.equal(metrics.vqa_accuracy(target.cuda()).cpu(), metrics.vqa_accuracy(target))


@pytest.mark.parametrize("metric", CLASSES.values(), ids=CLASSES)
def test_classes(metric):
    data = scored()
    expected, found = metric(), metric().cuda()
    for part in torch.arange(1_000).chunk(3):
        expected.update(*(x[part] for x in data))
        found.update(*(x[part].cuda() for x in data))
    assert found.compute().is_cuda
    torch.testing.assert_close(found.compute().cpu(), expected.compute(), rtol=1e-12, atol=1e-14)
    found.cpu()  # states follow
    found.update(*data)
    assert not found.compute().is_cuda
