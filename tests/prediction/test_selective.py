import pytest
import torch
from torch import nn

import varprop as vp
from tests.models import posterior_of
from varprop.errors import GuaranteeError, InputError, MetricError


@pytest.fixture(scope="module")
def predictor():
    """Right with the probability it states: labels are drawn from the predicted probabilities."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3).eval()
    with torch.no_grad():
        model.weight.mul_(8)
    return vp.Propagated(vp.propagate(model, posterior_of(model, 0.01)))


def draw(predictor, count, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator)
    return x, torch.multinomial(predictor(x).probs, 1, generator=generator).squeeze(-1)


def test_answers_or_abstains(predictor):
    selective = vp.Selective(predictor).fit([draw(predictor, 3000, 1)], risk=0.05)
    x, y = draw(predictor, 20_000, 2)
    decision = selective(x)
    assert torch.equal(decision.label == vp.ABSTAIN, ~decision.answered)
    assert torch.equal(decision.label[decision.answered], decision.prediction.label[decision.answered])
    wrong = (decision.label != y)[decision.answered].float()
    assert wrong.mean() <= 0.05 + 4 * (0.05 / len(wrong)) ** 0.5  # the test data have noise of their own
    assert decision.answered.float().mean() == pytest.approx(selective.guarantee.coverage, abs=0.05)


def test_what_was_left_out_when_fitting_is_left_out_later(predictor):
    """The threshold separates two float32 confidences, however near they are."""
    x, y = draw(predictor, 500, 1)
    selective = vp.Selective(predictor).fit([(x, y)], risk=0.1)
    assert int(selective(x).answered.sum()) == selective.guarantee.answered


def test_batches_make_no_difference(predictor):
    x, y = draw(predictor, 1000, 1)
    whole = vp.Selective(predictor).fit([(x, y)], risk=0.1).guarantee
    parts = vp.Selective(predictor).fit(zip(x.split(300), y.split(300), strict=True), risk=0.1).guarantee
    assert parts.answered == whole.answered
    assert parts.threshold == pytest.approx(whole.threshold, abs=1e-5)


def test_another_confidence(predictor):
    batches = [draw(predictor, 2000, 1)]
    score = lambda prediction: -vp.scores.entropy(prediction)  # noqa: E731
    selective = vp.Selective(predictor, score=score).fit(batches, risk=0.1)
    x = batches[0][0]
    assert torch.equal(selective(x).answered, score(predictor(x)).double() >= selective.guarantee.threshold)


def test_soft_correctness():
    """Answers that several annotators agree with in part."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3).eval()
    predictor = vp.Propagated(vp.propagate(model, posterior_of(model, 0.01)), link=vp.links.Sigmoid())
    scores = torch.tensor([0.9, 1.0, 0.9]).expand(2000, 3)
    selective = vp.Selective(predictor).fit([(torch.randn(2000, 4), scores)], risk=0.2)
    assert selective.guarantee.coverage == 1
    assert selective.guarantee.empirical_risk < selective.guarantee.bound <= 0.2


def test_what_cannot_be_promised(predictor):
    x, y = draw(predictor, 200, 1)
    with pytest.raises(GuaranteeError, match="at least 3744 examples"):
        vp.Selective(predictor).fit([(x, y)], risk=0.001)
    with pytest.raises(GuaranteeError, match="no threshold yet"):
        vp.Selective(predictor)(x)
    for risk in (0.0, 1.0, -0.1, 3):
        with pytest.raises(MetricError, match="risk"):
            vp.Selective(predictor).fit([(x, y)], risk=risk)
    with pytest.raises(InputError, match="no batches"):
        vp.Selective(predictor).fit([], risk=0.1)
    with pytest.raises(InputError, match="takes a predictor"):
        vp.Selective(predictor.net)
    regression = vp.Propagated(predictor.net, link=vp.links.Gaussian(1.0))
    with pytest.raises(InputError, match="regression"):
        vp.Selective(regression).fit([(x, torch.randn(200, 3))], risk=0.1)
    with pytest.raises(InputError, match="no example has a label"):
        vp.Selective(predictor).fit([(x, torch.full_like(y, -100))], risk=0.1)
