import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from torch import nn

import varprop as vp
from tests.models import posterior_of
from varprop.errors import InputError
from varprop.evaluation.evaluate import record
from varprop.prediction.guarantee import Guarantee

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


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool], ids=str)
def test_several_labels_of_any_dtype(predictor, dtype):
    """As with floats, in all that takes targets."""
    model = predictor.net.lifting.model
    sampled = vp.MonteCarlo(model, posterior_of(model, 0.05), 3, link=vp.links.Sigmoid())
    many = vp.Propagated(predictor.net, link=vp.links.Sigmoid())
    drawn = torch.rand(300, 3, generator=torch.Generator().manual_seed(3)) < 0.4
    if dtype == torch.int64:
        drawn = torch.where(X[:, :3] > -1.3, drawn.long(), -100)
    data, floats = (X, drawn.to(dtype)), (X, drawn.float())
    for each in (many, sampled, vp.PerLabel(many), vp.MeanNetwork(model, link=vp.links.Sigmoid())):
        found, expected = (vp.evaluate(each, given, progress=False) for given in (data, floats))
        assert found.metrics == expected.metrics
        assert torch.equal(found.target, expected.target)
        assert vp.Selective(each).fit(data, 0.8).guarantee == vp.Selective(each).fit(floats, 0.8).guarantee
    assert vp.evaluate(model, data, progress=False).metrics == expected.metrics
    assert vp.TemperatureScaled(many).fit(data).fitted == vp.TemperatureScaled(many).fit(floats).fitted


def test_labels_that_are_missing(predictor):
    """The answer is judged where it has a label, its probabilities by the labels that there are."""
    many = vp.Propagated(predictor.net, link=vp.links.Sigmoid())
    said = torch.randint(0, 2, (300, 3), generator=torch.Generator().manual_seed(3))
    said[torch.rand(300, 3, generator=torch.Generator().manual_seed(4)) < 0.3] = -100
    found, answer = vp.evaluate(many, (X, said), progress=False), many(X)
    judged = said.gather(1, answer.label[:, None])[:, 0]
    assert found.correctness.tolist() == judged[judged >= 0].tolist()
    losses = [
        nn.functional.binary_cross_entropy(p[label >= 0], label[label >= 0].float(), reduction="sum")
        for p, label in zip(answer.probs[judged >= 0], said[judged >= 0], strict=True)
    ]
    torch.testing.assert_close(found.scores["nll"].float(), torch.stack(losses))
    assert vp.Selective(many).fit((X, said), risk=0.9).guarantee.examples == len(found)
    some = int((said >= 0).any(1).sum())
    assert vp.TemperatureScaled(many).fit((X, said)).fitted.examples == some < 300
    with pytest.raises(InputError, match="neither right nor wrong: leave those examples out"):
        answer.correctness(said)


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


def test_a_predictor_that_abstains(predictor):
    promise = Guarantee(0.5, risk=0.1, level=0.95, coverage=1, empirical_risk=0, bound=0.1, answered=1, examples=1)
    found = vp.evaluate(vp.Selective(predictor, guarantee=promise), [(X, Y)], progress=False)
    prediction = predictor(X)
    answered, right = prediction.confidence >= 0.5, prediction.label == Y
    assert found.metrics["coverage"] == pytest.approx(float(answered.float().mean()))
    assert found.metrics["risk"] == pytest.approx(1 - float(right[answered].float().mean()))
    plain = vp.evaluate(predictor, [(X, Y)], progress=False).metrics
    assert {name: value for name, value in found.metrics.items() if name in plain} == plain


def test_a_plain_model_is_a_mean_network():
    torch.manual_seed(0)
    model = nn.Linear(4, 3).eval()
    found = vp.evaluate(model, iter([(X, Y)]), progress=False)
    assert found.metrics == vp.evaluate(vp.MeanNetwork(model), [(X, Y)], progress=False).metrics
    several = (torch.randn(300, 3) > 0).float()
    sigmoid = vp.MeanNetwork(model, link=vp.links.Sigmoid())
    assert vp.evaluate(model, (X, several)).metrics == vp.evaluate(sigmoid, (X, several)).metrics


def test_several_predictors(predictor):
    model = nn.Linear(4, 3).eval()
    held_out = vp.evaluate({"plain": model, "CVP": predictor}, (X[:100], Y[:100]), progress=False)
    found = vp.evaluate({"plain": model, "CVP": predictor}, (X, Y), held_out=held_out, progress=False)
    alone = vp.evaluate(predictor, (X, Y), held_out=held_out["CVP"], progress=False)
    assert found["CVP"].metrics == alone.metrics
    assert [line.split()[0] for line in repr(found).splitlines()[2:]] == ["plain", "CVP"]
    table = found.to_pandas()
    assert table.loc[("CVP", "phi@10"), "value"] == alone.metrics["phi@10"]
    assert list(vp.evaluate([model, predictor, predictor], (X, Y))) == ["Linear", "Propagated", "Propagated 2"]


def test_intervals_are_those_of_the_bootstrap(predictor):
    """For a mean over examples they are known: 1.96 standard errors to either side, up to some 10 % for 200 draws."""
    found = vp.evaluate(predictor, (X, Y), progress=False)
    accuracy = found.metrics["accuracy"]
    losses = found.scores["nll"].double()
    errors = {"accuracy": (accuracy * (1 - accuracy) / 300) ** 0.5, "nll": float(losses.std()) / 300**0.5}
    wide, narrow, table = found.intervals(), found.intervals(0.5), found.to_pandas()
    for name, error in errors.items():
        low, high = wide[name]
        assert (low, high) == tuple(table.loc[name, ["low", "high"]])
        assert high - low == pytest.approx(2 * 1.96 * error, rel=0.2)
        assert low < found.metrics[name] < high
        assert narrow[name][1] - narrow[name][0] == pytest.approx(2 * 0.674 * error, rel=0.3)
    with pytest.raises(InputError, match="a level lies between"):
        found.intervals(95)


def test_a_short_repr(predictor):
    found = vp.evaluate(predictor, (X, Y), progress=False)
    expected = f"Evaluation(300 examples: accuracy {found.metrics['accuracy']:.4g}, aurc "
    assert repr(found).startswith(expected)
    assert len(repr(found)) < 120


def test_what_is_no_predictor(predictor):
    expected = r"a propagated network, which has no link: evaluate\(vp.Propagated\(net\), batches\)"
    with pytest.raises(InputError, match=expected):
        vp.evaluate(predictor.net, (X, Y))
    expected = r"takes a predictor, a model, or several .*, not a Tensor: evaluate\(vp.fit\(model, held_out\), test\)"
    with pytest.raises(InputError, match=expected):
        vp.evaluate(X, (X, Y))
    names = np.array(["ant", "bee"])
    for batches in ([(X[:2], ["ant", "bee"])], (X[:2], ["ant", "bee"]), (X[:2], names), {"x": X[:2], "labels": names}):
        with pytest.raises(InputError, match="the labels are strings, such as 'ant': give class indices, torch.t"):
            vp.evaluate(predictor, batches)


@pytest.mark.parametrize("kind", ["plain", "propagated", "samples"])
def test_the_loss_of_labels_that_are_surely_wrong(kind):
    """Of a logit above 17 the probability is 1 in float32, and the loss of a wrong label still finite."""
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        model.bias.zero_()
    x = torch.tensor([[40.0], [-25.0], [0.3], [8.0]])
    target = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.4]])
    posterior = vp.Posterior.isotropic(model, std=1e-6)
    predictor = {
        "plain": vp.MeanNetwork(model, link=vp.links.Sigmoid()),
        "propagated": vp.Propagated(vp.propagate(model, posterior), link=vp.links.Sigmoid()),
        "samples": vp.MonteCarlo(model, posterior, 3, link=vp.links.Sigmoid()),
    }[kind]
    found = vp.evaluate(predictor, [(x, target)], progress=False).metrics["nll"]
    logits = model(x).detach().double()
    expected = nn.functional.binary_cross_entropy_with_logits(logits, target.double(), reduction="none")
    assert found == pytest.approx(float(expected.sum(-1).mean()), rel=1e-4)
