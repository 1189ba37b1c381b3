"""The torchmetrics classes equal the plain functions on all batches together."""

import copy
import itertools

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torchmetrics import MetricCollection

from varprop import metrics
from varprop.errors import MetricError

SCORED = {
    "AURC": (metrics.AURC, metrics.aurc),
    "CoverageAtRisk": (lambda: metrics.CoverageAtRisk(0.2), lambda a, b: metrics.coverage_at_risk(a, b, 0.2)),
    "EffectiveReliability": (
        lambda: metrics.EffectiveReliability(10, 0.5),
        lambda a, b: metrics.effective_reliability(a, b, 10, 0.5),
    ),
    "ECE": (metrics.ECE, metrics.ece),
    "ACE": (lambda: metrics.ACE(4), lambda a, b: metrics.ace(a, b, 4)),
    "Accuracy": (metrics.Accuracy, lambda _, b: metrics.accuracy(b)),
}
OF_PROBS = {
    "Brier": (metrics.Brier, metrics.brier),
    "NLL": (metrics.NLL, metrics.nll),
    "BCE": (metrics.BCE, metrics.bce),
}
OF_GAUSSIANS = {
    "GaussianNLL": (metrics.GaussianNLL, metrics.gaussian_nll),
    "CRPS": (metrics.CRPS, metrics.crps),
}
HIGHER_IS_BETTER = {"CoverageAtRisk", "EffectiveReliability", "Accuracy"}


def scored(examples=100, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    confidence = (torch.randint(0, 30, (examples,), generator=generator) / 30).to(dtype)
    return confidence, torch.randint(0, 4, (examples,), generator=generator) / 3


def predicted(examples=100, seed=0):
    generator = torch.Generator().manual_seed(seed)
    probs = torch.randn(examples, 4, generator=generator).softmax(1)
    return probs, torch.randn(examples, 4, generator=generator).softmax(1)


def regressed(examples=100, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mean, target = torch.randn(2, examples, generator=generator)
    return mean, torch.rand(examples, generator=generator) + 0.1, target


CASES = [pytest.param(*pair, scored, id=name) for name, pair in SCORED.items()]
CASES += [pytest.param(*pair, predicted, id=name) for name, pair in OF_PROBS.items()]
CASES += [pytest.param(*pair, regressed, id=name) for name, pair in OF_GAUSSIANS.items()]


@pytest.mark.parametrize(("metric", "function", "data"), CASES)
@settings(deadline=None, max_examples=20)
@given(cuts=st.lists(st.integers(0, 100), max_size=6), seed=st.integers(0, 5))
def test_any_split_into_batches(metric, function, data, cuts, seed):
    """Empty batches included."""
    whole = data(seed=seed)
    streaming = metric()
    edges = [0, *sorted(cuts), 100]
    for low, high in itertools.pairwise(edges):
        streaming.update(*(x[low:high] for x in whole))
    assert float(streaming.compute()) == pytest.approx(float(function(*whole)), rel=1e-12)


@pytest.mark.parametrize(("metric", "function", "data"), CASES)
def test_forward_gives_the_batch_and_accumulates(metric, function, data):
    first, second = data(seed=1), data(seed=2)
    streaming = metric()
    assert float(streaming(*first)) == pytest.approx(float(function(*first)), rel=1e-12)
    assert float(streaming(*second)) == pytest.approx(float(function(*second)), rel=1e-12)
    whole = [torch.cat(pair) for pair in zip(first, second, strict=True)]
    assert float(streaming.compute()) == pytest.approx(float(function(*whole)), rel=1e-12)
    streaming.reset()
    streaming.update(*second)
    assert float(streaming.compute()) == pytest.approx(float(function(*second)), rel=1e-12)


@pytest.mark.parametrize(("metric", "function", "data"), CASES)
def test_nothing_seen_is_an_error(metric, function, data):
    streaming = metric()
    with pytest.warns(UserWarning, match="before the ``update``"), pytest.raises(MetricError, match="no examples"):
        streaming.compute()
    streaming.update(*(x[:0] for x in data()))
    with pytest.raises(MetricError, match="no examples"):
        streaming.compute()


@pytest.mark.parametrize(("metric", "function", "data"), CASES)
def test_casting_the_model_around_it_does_not_round_the_state(metric, function, data):
    whole = data()
    streaming = metric()
    module = torch.nn.ModuleList([streaming, torch.nn.Linear(2, 2)])
    streaming.update(*(x[:50] for x in whole))
    module.to(torch.bfloat16)
    module.half()
    streaming.set_dtype(torch.float16)
    streaming.update(*(x[50:] for x in whole))
    module.to("cpu")
    assert streaming.dtype == torch.float64
    assert streaming.compute().dtype == torch.float64
    assert float(streaming.compute()) == pytest.approx(float(function(*whole)), rel=1e-12)


@pytest.mark.parametrize(("metric", "function", "data"), CASES)
def test_copies_and_merged_states(metric, function, data):
    first, second = data(seed=1), data(seed=2)
    one, other = metric(), metric()
    one.update(*first)
    other.update(*second)
    copied = copy.deepcopy(one)
    copied.merge_state(other)
    whole = [torch.cat(pair) for pair in zip(first, second, strict=True)]
    assert float(copied.compute()) == pytest.approx(float(function(*whole)), rel=1e-12)


@pytest.mark.parametrize("name", [*SCORED, *OF_PROBS])
def test_declarations(name):
    metric = (SCORED | OF_PROBS)[name][0]()
    assert metric.higher_is_better == (name in HIGHER_IS_BETTER)
    assert metric.full_state_update is False
    assert metric.is_differentiable is False


def test_a_collection_shares_no_state_by_coincidence():
    """On the first batch all is answered and right, so that these sums agree; from then on they must not."""
    collection = MetricCollection(
        {
            "cheap": metrics.EffectiveReliability(1, 0.5),
            "dear": metrics.EffectiveReliability(100, 0.5),
            "careful": metrics.EffectiveReliability(1, 0.55),
            "accuracy": metrics.Accuracy(),
            "aurc": metrics.AURC(),
            "strict": metrics.CoverageAtRisk(0.01),
            "loose": metrics.CoverageAtRisk(0.4),
            "ece": metrics.ECE(),
            "ece of 5": metrics.ECE(5),
        }
    )
    first = torch.full((4,), 0.9), torch.ones(4)
    second = torch.tensor([0.9, 0.52, 0.7, 0.1]), torch.tensor([0.0, 0.0, 1.0, 0.0])
    collection.update(*first)
    collection.update(*second)
    whole = [torch.cat(pair) for pair in zip(first, second, strict=True)]
    expected = {
        "cheap": metrics.effective_reliability(*whole, 1, 0.5),
        "dear": metrics.effective_reliability(*whole, 100, 0.5),
        "careful": metrics.effective_reliability(*whole, 1, 0.55),
        "accuracy": metrics.accuracy(whole[1]),
        "aurc": metrics.aurc(*whole),
        "strict": metrics.coverage_at_risk(*whole, 0.01),
        "loose": metrics.coverage_at_risk(*whole, 0.4),
        "ece": metrics.ece(*whole),
        "ece of 5": metrics.ece(*whole, 5),
    }
    found = collection.compute()
    assert {name: float(value) for name, value in found.items()} == pytest.approx(
        {name: float(value) for name, value in expected.items()}, rel=1e-12
    )


def test_scores_share_no_state_by_coincidence():
    collection = MetricCollection([metrics.Brier(), metrics.NLL(), metrics.BCE()])
    right = torch.tensor([[1.0, 0.0]])
    collection.update(right, right)  # all three are 0
    probs, target = torch.tensor([[0.7, 0.3]]), torch.tensor([[1.0, 0.0]])
    collection.update(probs, target)
    found = collection.compute()
    for name, function in (("Brier", metrics.brier), ("NLL", metrics.nll), ("BCE", metrics.bce)):
        assert float(found[name]) == pytest.approx(float(function(probs, target)) / 2, rel=1e-12)


def test_an_example_that_is_refused_changes_nothing():
    metric = metrics.Accuracy()
    metric.update(*scored())
    before = float(metric.compute())
    with pytest.raises(MetricError):
        metric.update(torch.ones(2), torch.tensor([0.0, 2.0]))
    assert float(metric.compute()) == before


def test_names_are_found_when_asked_for():
    """The classes are imported late: test_layout holds that importing varprop does not import torchmetrics."""
    assert set(metrics.__all__) <= set(dir(metrics))
    assert not hasattr(metrics, "nonsense")
