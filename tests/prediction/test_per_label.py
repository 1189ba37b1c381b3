import pytest
import torch
from torch import nn

import varprop as vp
from tests.models import posterior_of
from varprop.errors import InputError

X = torch.randn(2000, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def predictor():
    torch.manual_seed(0)
    model = nn.Linear(4, 3).eval()
    with torch.no_grad():
        model.weight.mul_(4)
    return vp.Propagated(vp.propagate(model, posterior_of(model, 0.01)), link=vp.links.Sigmoid())


@pytest.fixture(scope="module")
def said(predictor):
    drawn = torch.bernoulli(predictor(X).probs, generator=torch.Generator().manual_seed(1))
    return drawn.masked_fill(torch.rand(drawn.shape, generator=torch.Generator().manual_seed(2)) < 0.2, -100)


def test_a_threshold_for_each_label(predictor, said):
    fitted = vp.PerLabel(predictor).fit([(X[:700], said[:700]), (X[700:], said[700:])])
    probs = predictor(X).probs
    for label, threshold in enumerate(fitted.thresholds):
        seen = said[:, label] >= 0
        assert threshold == vp.metrics.best_f1_threshold(probs[seen, label], said[seen, label])
    found = fitted(X)
    assert torch.equal(found.label, (probs >= torch.tensor(fitted.thresholds)).long())
    assert torch.equal(found.confidence, torch.where(found.label == 1, probs, 1 - probs))
    assert torch.equal(vp.PerLabel(predictor)(X).label, (probs >= 0.5).long())


def test_single_labels_are_abstained_from(predictor, said):
    """With a guarantee over all decisions; what nobody said is not counted."""
    selective = vp.Selective(vp.PerLabel(predictor)).fit([(X, said)], risk=0.05)
    decision = selective(X)
    assert decision.label.shape == (2000, 3)
    assert bool((decision.label == vp.ABSTAIN).any(0).all())
    answered = decision.answered & (said >= 0)
    assert float((decision.label != said)[answered].float().mean()) <= 0.05
    assert selective.guarantee.examples == int((said >= 0).sum())


def test_what_is_refused(predictor):
    with pytest.raises(InputError, match="need a sigmoid"):
        vp.PerLabel(vp.Propagated(predictor.net))
    with pytest.raises(InputError, match=r"lies in \[0, 1\]"):
        vp.PerLabel(predictor, [0.5, 2.0, 0.1])
    with pytest.raises(InputError, match="2 thresholds for 3 labels"):
        vp.PerLabel(predictor, [0.5, 0.2])(X)
    with pytest.raises(InputError, match=r"targets of shape \[2000\]"):
        vp.PerLabel(predictor).fit([(X, torch.zeros(2000))])
