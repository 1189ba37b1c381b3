import pytest
import torch
from sklearn.metrics import f1_score
from torch import nn

import varprop as vp
from tests.models import posterior_of
from varprop.errors import InputError
from varprop.evaluation.evaluate import record

X = torch.randn(300, 4, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (300,), generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def predictor():
    torch.manual_seed(0)
    model = nn.Linear(4, 3).eval()
    return vp.Propagated(vp.propagate(model, posterior_of(model, 0.05)))


def test_every_metric_is_the_function_of_its_name(predictor):
    held_out = vp.evaluate(predictor, [(X[:100], Y[:100])], progress=False)
    found = vp.evaluate(predictor, [(X[100:180], Y[100:180]), (X[180:], Y[180:])], held_out=held_out, progress=False)
    prediction = predictor(X[100:])
    confidence, correctness = prediction.confidence, prediction.correctness(Y[100:])
    threshold = vp.metrics.best_threshold(held_out.confidence, held_out.correctness, 10)
    expected = {
        "accuracy": correctness.mean(),
        "aurc": vp.metrics.aurc(confidence, correctness),
        "c@0.5": vp.metrics.coverage_at_risk(confidence, correctness, 0.005),
        "c@1": vp.metrics.coverage_at_risk(confidence, correctness, 0.01),
        "c@2": vp.metrics.coverage_at_risk(confidence, correctness, 0.02),
        "c@5": vp.metrics.coverage_at_risk(confidence, correctness, 0.05),
        "ece": vp.metrics.ece(confidence, correctness),
        "ace": vp.metrics.ace(confidence, correctness),
        "brier": vp.metrics.brier(prediction.probs, Y[100:]),
        "nll": vp.metrics.nll(prediction.probs, Y[100:]),
        "phi@10": vp.metrics.effective_reliability(confidence, correctness, 10, threshold),
    }
    assert found.metrics.keys() == expected.keys() | {"phi@50", "phi@100"}
    chosen = {name: found.metrics[name] for name in expected}
    assert chosen == pytest.approx({name: float(value) for name, value in expected.items()}, rel=1e-5, abs=1e-6)
    assert torch.equal(found.label, prediction.label)
    assert torch.equal(found.target, Y[100:])
    assert len(found) == 200


def test_several_labels(predictor):
    many = vp.Propagated(predictor.net, link=vp.links.Sigmoid())
    scores = torch.rand(300, 3, generator=torch.Generator().manual_seed(3))
    found = vp.evaluate(many, [(X, scores)], progress=False)
    prediction = many(X)
    assert found.metrics["nll"] == pytest.approx(float(vp.metrics.bce(prediction.probs, scores)), rel=1e-5)
    assert found.metrics["accuracy"] == pytest.approx(float(prediction.correctness(scores).mean()), rel=1e-5)
    assert torch.equal(found.target, scores.argmax(-1))


def test_one_logit():
    torch.manual_seed(0)
    model = nn.Linear(4, 1).eval()
    predictor = vp.Propagated(vp.propagate(model, posterior_of(model, 0.05)), link=vp.links.Sigmoid())
    labels = (Y > 0).long()
    for target in (labels, labels[:, None], labels[:, None].float()):
        found = vp.evaluate(predictor, [(X, target)], progress=False)
        p = predictor(X).probs[:, 0]
        expected = nn.functional.binary_cross_entropy(p, labels.float())
        assert found.metrics["nll"] == pytest.approx(float(expected), rel=1e-5)
        assert found.metrics["accuracy"] == pytest.approx(float(((p >= 0.5) == labels).float().mean()))


def test_what_is_refused(predictor):
    with pytest.raises(InputError, match="no batches"):
        vp.evaluate(predictor, [])
    with pytest.raises(InputError, match=r"targets of shape \[300\] for outputs of shape \[300, 3\]"):
        vp.evaluate(vp.Propagated(predictor.net, link=vp.links.Gaussian(1.0)), [(X, torch.randn(300))])


def test_regression(predictor):
    regression = vp.Propagated(predictor.net, link=vp.links.Gaussian(0.5))
    target = torch.randn(300, 3, generator=torch.Generator().manual_seed(3))
    found = vp.evaluate(regression, [(X[:80], target[:80]), (X[80:], target[80:])], progress=False)
    answer = regression(X)
    low, high = answer.interval(0.95)
    expected = {
        "rmse": vp.metrics.rmse(answer.mean, target),
        "nll": regression.link.loss(answer.logits, target).mean() / 3,
        "crps": vp.metrics.crps(answer.mean, answer.var, target),
        "picp@95": ((low <= target) & (target <= high)).float().mean(),
        "mpiw@95": (high - low).mean(),
    }
    assert found.metrics == pytest.approx({name: float(value) for name, value in expected.items()}, rel=1e-5)
    assert len(found) == 900
    row, scores = record(found, found, row="x", method="cvp", seed=0)
    assert row.metrics == found.metrics
    assert row.curve is scores is None


def test_decisions_label_by_label(predictor):
    many = vp.PerLabel(vp.Propagated(predictor.net, link=vp.links.Sigmoid()))
    said = torch.randint(0, 2, (300, 3), generator=torch.Generator().manual_seed(3))
    said[::7, 1] = -100
    fitted = many.fit([(X, said)])
    found = vp.evaluate(fitted, [(X, said)], progress=False)
    seen = said >= 0
    yes = (many.predictor(X).probs >= torch.tensor(fitted.thresholds))[seen]
    assert found.metrics["f1"] == pytest.approx(f1_score(said[seen], yes))
    assert found.metrics["accuracy"] == pytest.approx(float((yes == said[seen]).float().mean()))
    assert len(found) == int(seen.sum())
    assert vp.evaluate(fitted, [(X, said.float())], progress=False).metrics == found.metrics
