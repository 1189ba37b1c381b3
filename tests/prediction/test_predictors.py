"""Predictors: one protocol, and each against what it is defined to be."""

import math

import pytest
import torch
from torch import nn

import varprop as vp
from tests.models import posterior_of
from varprop.errors import InputError, OutputError, PosteriorError, TrainingModeError
from varprop.evaluation.methods import named
from varprop.prediction.temperature import minimize, with_noise


def small(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).eval()


@pytest.fixture
def model():
    return small()


@pytest.fixture
def posterior(model):
    return posterior_of(model, 0.03)


X = torch.randn(10, 4, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (10,), generator=torch.Generator().manual_seed(2))


def every_predictor(model, posterior):
    net = vp.propagate(model, posterior)
    yield vp.MeanNetwork(model)
    yield vp.TemperatureScaled(vp.MeanNetwork(model), 2.0)
    yield vp.MonteCarlo(model, posterior, 5)
    yield vp.Propagated(net)
    yield vp.TemperatureScaled(vp.Propagated(net), 0.5)
    yield vp.Propagated(vp.propagate(model, posterior, vp.STREAMLINING))


def test_one_protocol(model, posterior):
    for predictor in every_predictor(model, posterior):
        assert isinstance(predictor, vp.Predictor)
        prediction = predictor(X)
        assert isinstance(prediction, vp.Prediction)
        torch.testing.assert_close(prediction.probs.sum(-1), torch.ones(10))
        assert prediction.label.shape == prediction.confidence.shape == (10,)
        assert not prediction.probs.requires_grad
        assert torch.equal(prediction.probs, predictor(X).probs), f"{predictor} twice"
        alone = torch.cat([predictor(X[i : i + 1]).probs for i in range(10)])
        torch.testing.assert_close(alone, prediction.probs, rtol=0, atol=1e-5)


def test_mean_network(model):
    torch.testing.assert_close(vp.MeanNetwork(model)(X).probs, model(X).softmax(-1))


def test_the_means_of_the_posterior_are_used(model):
    other = small(seed=5)
    before = model(X)
    prediction = vp.MeanNetwork(model, posterior_of(other, 0.1))(X)
    torch.testing.assert_close(prediction.probs, other(X).softmax(-1))
    assert torch.equal(model(X), before)


def test_monte_carlo_is_the_average_of_its_draws(model, posterior):
    predictor = vp.MonteCarlo(model, posterior, 6, seed=3)
    expected = []
    for weights in predictor.weights():
        twin = small(seed=9)
        twin.load_state_dict(weights)
        expected.append(twin(X).softmax(-1))
    torch.testing.assert_close(predictor(X).probs, torch.stack(expected).mean(0))


def test_monte_carlo_draws_from_the_posterior(model, posterior):
    predictor = vp.MonteCarlo(model, posterior, 4000)
    draws = torch.stack([weights["0.weight"] for weights in predictor.weights()])
    mean, var = posterior["0.weight"]
    assert bool(((draws.mean(0) - mean).abs() < 5 * (var / 4000).sqrt()).all())
    torch.testing.assert_close(draws.var(0), var, rtol=5 * math.sqrt(2 / 4000), atol=0)


def test_networks_run_as_one(model, posterior):
    one_by_one = vp.MonteCarlo(model, posterior, 7)(X)
    for at_once in (2, 7, 50):
        torch.testing.assert_close(vp.MonteCarlo(model, posterior, 7, at_once=at_once)(X).probs, one_by_one.probs)


class Masked(nn.Module):
    """Attention that no padded token takes part in."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x, mask):
        tokens = self.inner(x)[:, None]
        return self.head(nn.functional.scaled_dot_product_attention(tokens, tokens, tokens, mask)[:, 0, 0])


@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))],
)
def test_networks_run_as_one_with_a_mask_they_share(device):
    """CUDA's fused attention refuses it."""
    torch.manual_seed(0)
    model = Masked().eval().to(device)
    posterior = posterior_of(model, 0.1)
    x, mask = torch.randn(10, 16, 4, device=device), torch.rand(10, 1, 1, 16, device=device) < 0.7
    one_by_one = vp.MonteCarlo(model, posterior, 5)(x, mask)
    torch.testing.assert_close(vp.MonteCarlo(model, posterior, 5, at_once=3)(x, mask).probs, one_by_one.probs)


def test_seeds(model, posterior):
    a, b, c = (vp.MonteCarlo(model, posterior, 3, seed=seed)(X).probs for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_monte_carlo_of_a_regression():
    torch.manual_seed(0)
    model = nn.Linear(4, 1).eval()
    posterior = posterior_of(model, 0.1)
    sampled = vp.MonteCarlo(model, posterior, 4000, link=vp.links.Gaussian(0.5))(X)
    exact = vp.Propagated(vp.propagate(model, posterior), link=vp.links.Gaussian(0.5))(X)
    assert isinstance(exact, vp.Regression)
    torch.testing.assert_close(sampled.var - 0.25, exact.var - 0.25, rtol=5 * math.sqrt(2 / 4000), atol=0)
    plain = vp.MeanNetwork(model, link=vp.links.Gaussian(0.5))(X)
    torch.testing.assert_close(plain.var, torch.full((10, 1), 0.25))


def test_wrong_use(model, posterior):
    with pytest.raises(InputError, match="at least 1"):
        vp.MonteCarlo(model, posterior, 0)
    with pytest.raises(InputError, match="positive"):
        vp.TemperatureScaled(vp.MeanNetwork(model), 0.0)
    with pytest.raises(
        InputError, match=r"there are no logits to divide in a MonteCarlo.*TemperatureScaled\(MeanNetwork\(model\)\)"
    ):
        vp.TemperatureScaled(vp.MonteCarlo(model, posterior, 2))
    with pytest.raises(InputError, match="is a regression: calibrate.. fits its noise"):
        vp.TemperatureScaled(vp.MeanNetwork(model, link=vp.links.Gaussian(1.0)))
    with pytest.raises(TrainingModeError):
        vp.MonteCarlo(nn.Sequential(nn.Dropout(), nn.Linear(4, 3)), vp.Posterior.from_tensors({}, {}), 2)
    with pytest.raises(InputError, match=r"for a single example: give a batch, such as inputs.unsqueeze\(0\)"):
        vp.MeanNetwork(model).predict(X[0])
    with pytest.raises(PosteriorError, match=r"not a AdamW.*from_adam\(model, optimizer"):
        vp.propagate(model, torch.optim.AdamW(model.parameters()))
    with torch.no_grad():
        model[0].weight.fill_(math.nan)
    with pytest.raises(OutputError, match="10 of 10"):
        vp.MeanNetwork(model)(X)


class Two(nn.Linear):
    """What comes first is of another dtype than the weights, as it should be."""

    def forward(self, shift, x):
        return super().forward(x) + shift[:, None]


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((X, Y), {}, r"takes 2 positional arguments but 3 were given\. Its forward takes \(input\)$"),
        ((), {"input": X, "idx": Y}, r"unexpected keyword argument 'idx'\. Its forward takes \(input\)$"),
        ((X.double(),), {}, r"Input 0 is torch.float64, the model torch.float32: does it need .to\(torch.float32\)\?$"),
        ((X[:, :3],), {}, r"mat1 and mat2 shapes cannot be multiplied \(10x3 and 4x3\)\.$"),
    ],
)
def test_inputs_that_the_model_does_not_take(args, kwargs, message):
    """Told alike by whatever calls it, with a remedy that was seen to help."""
    model = nn.Linear(4, 3)
    for each in every_predictor(model, posterior_of(model, 0.03)):
        with pytest.raises(InputError, match=rf"Linear itself fails on these inputs: .*{message}"):
            each(*args, **kwargs)


def test_the_input_that_needs_another_dtype():
    model = Two(4, 3).eval()
    for each in every_predictor(model, posterior_of(model, 0.03)):
        with pytest.raises(InputError, match=r"Input 1 is torch.float64, the model torch.float32: does it"):
            each(Y, X.double())


# --- temperature -----------------------------------------------------------------------------------------


def overconfident(rows=2000):
    """Logits three times too large for the labels, which are drawn from the true probabilities."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=generator)
    labels = torch.multinomial(x.softmax(-1), 1, generator=generator).squeeze(-1)
    model = nn.Linear(3, 3, bias=False).eval()
    with torch.no_grad():
        model.weight.copy_(3 * torch.eye(3))
    return model, x, labels


@torch.no_grad()
def test_temperature_is_found():
    model, x, labels = overconfident()
    fitted = vp.TemperatureScaled(vp.MeanNetwork(model)).fit([(x, labels)])
    assert fitted.temperature == pytest.approx(3.0, rel=0.1)
    scaled = (model(x) / fitted.temperature).detach()
    assert fitted.fitted.after == pytest.approx(float(nn.functional.cross_entropy(scaled, labels)), rel=1e-5)
    assert fitted.fitted.before == pytest.approx(float(nn.functional.cross_entropy(model(x), labels)), rel=1e-5)
    # the best there is: its derivative vanishes
    for other in (0.99, 1.01):
        worse = nn.functional.cross_entropy((model(x).double() / (other * fitted.temperature)), labels)
        assert float(worse) > fitted.fitted.after


def test_temperature_does_not_depend_on_the_batches():
    model, x, labels = overconfident(500)
    whole = vp.TemperatureScaled(vp.MeanNetwork(model)).fit([(x, labels)])
    parts = vp.TemperatureScaled(vp.MeanNetwork(model)).fit(zip(x.split(77), labels.split(77), strict=True))
    assert whole.temperature == pytest.approx(parts.temperature, rel=1e-4)


def test_temperature_of_perfect_labels_says_so(model):
    labels = vp.MeanNetwork(model)(X).label
    with pytest.warns(UserWarning, match="end of the range"):
        fitted = vp.TemperatureScaled(vp.MeanNetwork(model)).fit([(X, labels)])
    assert fitted.fitted.after <= fitted.fitted.before


def test_temperature_of_a_propagated_network(model, posterior):
    predictor = vp.Propagated(vp.propagate(model, posterior))
    fitted = vp.TemperatureScaled(predictor).fit([(X, Y)])
    nll = -fitted(X).probs.gather(-1, Y[:, None]).log().mean()
    assert fitted.fitted.after == pytest.approx(float(nll), rel=1e-4)
    assert fitted.fitted.after <= fitted.fitted.before


def test_minimum_where_gradients_vanish():
    """A long plateau on one side, where a gradient method would stop."""
    y, x = minimize(lambda t: -math.exp(-(((t - 1.3) / 0.7) ** 2)))
    assert x == pytest.approx(1.3, abs=1e-4)
    assert y == pytest.approx(-1.0)
    assert minimize(lambda t: math.inf if t < 0 else (t - 0.5) ** 2)[1] == pytest.approx(0.5, abs=1e-3)


# --- noise -----------------------------------------------------------------------------------------------


def regression():
    torch.manual_seed(0)
    x = torch.randn(200, 3)
    return nn.Linear(3, 1).eval(), x, x.sum(1, keepdim=True) + 0.7 * torch.randn(200, 1)


def test_noise_is_what_the_variance_of_the_weights_does_not_explain():
    """Where only the bias is random, all outputs have its variance, and the rest of the mean square error is noise."""
    model, x, y = regression()
    error = float((model(x).detach() - y).square().mean())
    plain = with_noise(vp.MeanNetwork(model, link=vp.links.Gaussian()), [(x[:50], y[:50]), (x[50:], y[50:])])
    assert plain.link.noise_std == pytest.approx(math.sqrt(error), rel=1e-4)
    bias = vp.Posterior.from_tensors({"bias": model.bias.detach()}, {"bias": torch.full((1,), 0.4 * error)})
    found = with_noise(vp.Propagated(vp.propagate(model, bias), link=vp.links.Gaussian()), [(x, y)])
    assert found.link.noise_std**2 == pytest.approx(0.6 * error, rel=1e-3)
    with pytest.raises(InputError, match="no noise to fit"):
        with_noise(plain, [(x, y)])


def test_methods_of_a_regression_know_the_noise():
    model, x, y = regression()
    for name in ("mean", "mc-2"):
        predictor = named(name).build(model, posterior_of(model, 0.01), [(x, y)], link=vp.links.Gaussian())
        assert vp.evaluate(predictor, [(x, y)], progress=False).metrics["picp@95"] == pytest.approx(0.95, abs=0.03)
    given = named("mean").build(model, posterior_of(model, 0.01), [(x, y)], link=vp.links.Gaussian(0.2))
    assert given.link.noise_std == 0.2


# --- weights ---------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """Two layers with one weight; interrupted on demand."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x, fails=False):
        y = self.second(self.first(x).relu())
        if fails:
            raise KeyboardInterrupt
        return y


def test_sampled_weights_are_where_functional_call_puts_them():
    torch.manual_seed(0)
    for model, x in ((Tied(), X[:, :4]), (Last(), X[:, None, :4])):
        before = {name: (id(p), p.detach().clone()) for name, p in model.named_parameters()}
        predictor = vp.MonteCarlo(model, posterior_of(model, 0.1), 3)
        for weights, logits in zip(predictor.weights(), predictor.draws(x), strict=True):
            torch.testing.assert_close(logits, torch.func.functional_call(model, weights, x))
        for name, parameter in model.named_parameters():
            assert id(parameter) == before[name][0]
            assert torch.equal(parameter, before[name][1])


class Last(nn.Module):
    """The last state of a recurrent layer, whose weights torch also keeps in a list."""

    def __init__(self):
        super().__init__()
        self.recurrent = nn.GRU(4, 3, batch_first=True)

    def forward(self, x):
        return self.recurrent(x)[0][:, -1]


def test_weights_come_back_after_an_interrupt():
    model = Tied()
    before = list(model.parameters())
    with pytest.raises(KeyboardInterrupt):
        vp.MonteCarlo(model, posterior_of(model, 0.1), 3)(X[:, :4], fails=True)
    assert all(one is other for one, other in zip(model.parameters(), before, strict=True))
    assert model.second.weight is model.first.weight
