"""vp.fit: from a trained network to a predictor in one line."""

from collections import namedtuple

import pytest
import torch
from torch import nn

import varprop as vp
from varprop.errors import InputError
from varprop.prediction.predictors import link_for

LOGITS = torch.zeros(4, 3)


class Tripled:
    """A calibration that takes no time."""

    def fit(self, net, held_out, request):
        net.temperature = 3.0 if request.link == vp.links.Softmax() else 1.0
        return net


@pytest.mark.parametrize(
    ("logits", "target", "link"),
    [
        (LOGITS, torch.tensor([0, 1, 2, 1]), vp.links.Softmax()),
        (torch.zeros(4, 5, 3), torch.zeros(4, 5, dtype=torch.long), vp.links.Softmax()),
        (LOGITS, torch.tensor([[0.0, 1, 1]] * 4), vp.links.Sigmoid()),
        (LOGITS, torch.tensor([[0, 1, 1]] * 4), vp.links.Sigmoid()),
        (torch.zeros(4, 1), torch.tensor([0, 1, 1, 0]), vp.links.Sigmoid()),
        (torch.zeros(4, 1), torch.tensor([[0.0], [1], [1], [0]]), vp.links.Sigmoid()),
        (LOGITS, torch.randn(4, 3), vp.links.Gaussian()),
        (torch.zeros(4), torch.randn(4), vp.links.Gaussian()),
        (torch.zeros(4), torch.tensor([0, 0, 1, 0]), vp.links.Sigmoid()),
        (torch.zeros(4), torch.tensor([0.0, 0, 1, 0]), vp.links.Sigmoid()),
    ],
)
def test_the_link_is_seen_from_the_targets(logits, target, link):
    assert link_for(logits, target) == link


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            torch.eye(4, 3)[[0, 1, 2, 0]],
            r"a single 1: give class indices, targets.argmax\(-1\), .*links.Sigmoid",
        ),
        (torch.tensor([[3, 1, 2]] * 4), "give floats for a regression, or say what they are with link="),
        (torch.tensor([[0], [1], [2], [1]]), r"drop the last dimension, targets.squeeze\(-1\)"),
        (torch.tensor([0.0, 1, 2, 1]), r"class indices are integers, targets.long\(\)"),
        (torch.tensor([0, 1, 2]), "their first dimensions must agree"),
    ],
)
def test_targets_that_do_not_tell(target, message):
    with pytest.raises(InputError, match=message):
        link_for(LOGITS, target)


class Shares(nn.Linear):
    """Probabilities that are not seen to come from a softmax."""

    def forward(self, x):
        y = super().forward(x).exp()
        return y / y.sum(-1, keepdim=True)


ON_PROBABILITIES = {
    "mean": lambda model, link, x, y: vp.MeanNetwork(model, link=link)(x),
    "samples": lambda model, link, x, y: vp.MonteCarlo(model, vp.Posterior.isotropic(model), 2, link=link)(x),
    "propagated": lambda model, link, x, y: vp.Propagated(
        vp.propagate(model, vp.Posterior.isotropic(model)), link=link
    )(x),
    "temperature": lambda model, link, x, y: vp.TemperatureScaled(vp.MeanNetwork(model, link=link)).fit((x, y)),
    "evaluate": lambda model, link, x, y: vp.evaluate(model, (x, y), progress=False),
    "fit": lambda model, link, x, y: vp.fit(model, (x, y), progress=False, procedure=Tripled()),
    "fit, link": lambda model, link, x, y: vp.fit(model, (x, y), link=link, progress=False, procedure=Tripled()),
}


@pytest.mark.filterwarnings("ignore:the best temperature is at the end")
@pytest.mark.parametrize("use", ON_PROBABILITIES.values(), ids=ON_PROBABILITIES)
def test_outputs_that_are_no_logits(use):
    """Wherever they meet a link; a warning is that of the line here."""
    torch.manual_seed(0)
    x, y = held_out(16)
    with pytest.raises(InputError, match=r"applies a softmax to them: let the model return .* output=torch\.log$"):
        use(Shares(4, 3), vp.links.Softmax(), x, y)
    text = r"all outputs are in \[0, 1\]: .* a second sigmoid to them: let the model return .* output=torch\.logit$"
    with pytest.warns(UserWarning, match=text) as caught:
        use(
            nn.Sequential(nn.Linear(4, 3), nn.Sigmoid()),
            vp.links.Sigmoid(),
            x,
            nn.functional.one_hot(y, 3) * (x > 0)[:, :3],
        )
    assert {warning.filename for warning in caught} == {__file__}


def test_outputs_that_are_logits():
    """Also where none is negative, where they are logs of probabilities, and where one example says little."""
    x, y = held_out()
    model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))
    right = vp.MeanNetwork(model[:1])
    found = vp.evaluate({"logs": vp.MeanNetwork(model, output=torch.log), "logits": right}, (x, y))
    assert found["logs"].metrics["nll"] == pytest.approx(found["logits"].metrics["nll"])
    for logits in (torch.rand(20, 3), torch.tensor([[0.3, 0.7]]), torch.zeros(20, 2), torch.ones(20, 2) / 2):
        vp.links.Softmax()(vp.Moments(logits, torch.zeros_like(logits)))
    untrained = 0.1 * torch.rand(20, 3)
    for logits in (3 * torch.rand(20, 3), torch.rand(5, 3), untrained, torch.zeros(20, 1), torch.ones(20)):
        vp.links.Sigmoid()(vp.Moments(logits, torch.zeros_like(logits)))


@pytest.mark.parametrize(
    ("outputs", "target", "message"),
    [
        (torch.zeros(4, 1), torch.randn(4), r"give targets.unsqueeze\(-1\)"),
        (torch.zeros(4), torch.randn(4, 1), r"give targets.squeeze\(-1\)"),
    ],
)
def test_targets_of_a_regression_with_another_number_of_dimensions(outputs, target, message):
    with pytest.raises(InputError, match=message):
        link_for(outputs, target)


@pytest.mark.filterwarnings("ignore:no variance reaches the output")
def test_a_model_whose_output_carries_no_variance():
    """Its variance ends at the softmax, after it has moved the means behind the ReLU."""

    class Certain(nn.Sequential):
        def forward(self, x):
            return torch.log(super().forward(x).softmax(-1) + 1e-3)

    torch.manual_seed(0)
    x, y = held_out(120)
    found = vp.fit(Certain(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval(), (x, y), progress=False)
    assert not found(x).logits.var.any()


def held_out(count=80):
    torch.manual_seed(1)
    return torch.randn(count, 4), torch.randint(0, 3, (count,))


def test_fit_is_propagate_and_calibrate():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).eval()
    found = vp.fit(model, held_out(), classes="abc", procedure=Tripled())
    x = torch.randn(5, 4)
    logits = vp.propagate(model, vp.Posterior.isotropic(model))(x).divided_by(3.0)
    assert torch.equal(found(x).probs, vp.links.Softmax()(logits).probs)
    assert set(found(x).names) <= set("abc")
    posterior = vp.Posterior.isotropic(model, std=0.5)
    given = vp.fit(model, iter([held_out()]), posterior, vp.links.MeanFieldSoftmax(), procedure=Tripled())
    assert given.link == vp.links.MeanFieldSoftmax()
    assert given.net.var["0.weight"].unique().item() == 0.25


def test_a_warning_of_calibration_is_that_of_the_line_that_fits():
    torch.manual_seed(0)
    model, (x, _) = nn.Linear(4, 3), held_out(300)
    for procedure, text in ((vp.Adaptive(), "not one of 300"), (vp.FixedEpochs(epochs=1), "underconfident")):
        with pytest.warns(UserWarning, match=text) as caught:
            vp.fit(model, (x, model(x).argmax(-1)), procedure=procedure, progress=False)
        assert {warning.filename for warning in caught} == {__file__}


class OneLogit(nn.Module):
    """As most binary classifiers end: [N, 1] becomes [N]."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))

    def forward(self, x):
        return self.layers(x).squeeze(-1)


def test_a_single_logit_without_a_dimension_of_its_own(tmp_path):
    torch.manual_seed(0)
    model, x = OneLogit().eval(), 5 * torch.randn(60, 4)
    target = model(x).detach().mul(2).sigmoid().bernoulli()
    posterior = vp.Posterior.from_fisher(model, [(x, target)], link=vp.links.Sigmoid(), progress=False)
    kept = vp.Posterior.from_fisher(model.layers, [(x, target)], link=vp.links.Sigmoid(), progress=False)
    for name, pair in kept.items():
        torch.testing.assert_close(posterior[f"layers.{name}"].var, pair.var)
    found = vp.fit(model, (x, target), posterior, progress=False)
    column = vp.fit(model.layers, (x, target), kept, progress=False)
    assert found.link == column.link == vp.links.Sigmoid()
    assert found.net.calibration == column.net.calibration
    found.save_pretrained(tmp_path / "found")
    for predictor, other in (
        (found, column),
        (vp.load(tmp_path / "found", model), column),
        (vp.MeanNetwork(model, link=found.link), vp.MeanNetwork(model.layers, link=found.link)),
        (
            vp.MonteCarlo(model, posterior, samples=3, link=found.link),
            vp.MonteCarlo(model.layers, kept, samples=3, link=found.link),
        ),
    ):
        answer, expected = predictor.predict(x, progress=False), other.predict(x, progress=False)
        torch.testing.assert_close(answer.probs, expected.probs)
        assert answer.label.shape == answer.confidence.shape == (60,)
    assert torch.equal(vp.scores.mutual_information(answer), vp.scores.mutual_information(expected))
    scored, apart = (vp.evaluate(each, (x, target), progress=False).metrics for each in (found, column))
    assert scored == pytest.approx(apart, rel=1e-4)


class Sides(nn.Linear):
    """Its inputs are one list or tuple."""

    def forward(self, sides):
        return super().forward(torch.cat(tuple(sides), -1))


@pytest.mark.filterwarnings("ignore:the best temperature is at the end")  # labels are random
@pytest.mark.parametrize("together", [tuple, list, lambda sides: namedtuple("Sides", "left right")(*sides)])
def test_a_model_with_one_list_of_inputs(together):
    torch.manual_seed(0)
    model, x, y = Sides(4, 3), *held_out()
    data = together(x.split(2, -1)), y
    posterior = vp.Posterior.from_fisher(model, data, progress=False)
    found = vp.fit(model, data, posterior, progress=False, procedure=Tripled())
    joined = nn.Linear(4, 3)
    joined.load_state_dict(model.state_dict())
    expected = vp.fit(joined, (x, y), posterior, progress=False, procedure=Tripled())
    sampled = (vp.MonteCarlo(each, posterior, 3) for each in (model, joined))
    for each, other in ((found, expected), (model, joined), sampled):
        metrics = vp.evaluate(each, [data], progress=False).metrics
        assert metrics == pytest.approx(vp.evaluate(other, (x, y), progress=False).metrics, rel=1e-5)
    torch.testing.assert_close(found.predict([data]).probs, expected.predict(x).probs)
    scaled, plain = (vp.TemperatureScaled(vp.MeanNetwork(each)) for each in (model, joined))
    assert scaled.fit(data).fitted.before == pytest.approx(plain.fit((x, y)).fitted.before)


@pytest.mark.second
def test_a_predictor_without_variance():
    """The network is underconfident: variance cannot help, and what is left predicts all the same."""
    torch.manual_seed(0)
    model, x = nn.Linear(4, 3).eval(), 4 * torch.randn(400, 4)
    labels = (4 * model(x)).softmax(-1).multinomial(1).squeeze(-1)
    found = vp.fit(model, (x, labels), progress=False)
    assert found.net.calibration.chosen == "temperature"
    prediction = found.predict(x)
    assert torch.equal(prediction.var, torch.zeros(400, 3))
    scaled = vp.TemperatureScaled(vp.MeanNetwork(model), found.net.temperature)
    assert torch.allclose(prediction.probs, scaled(x).probs, atol=1e-6)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_noise_of_a_regression_is_fitted(seed):
    """Also where variance hardly helps: a plain network without its noise is no candidate."""
    torch.manual_seed(seed)
    model = nn.Linear(4, 1).eval()
    x = torch.randn(100, 4)
    target = model(x).detach() + 0.2 * torch.randn(100, 1)
    found = vp.fit(model, (x, target), progress=False)
    assert isinstance(found.link, vp.links.Gaussian)
    assert found.predict(x).std.mean().item() == pytest.approx((target - model(x)).std().item(), rel=0.1)
