"""from_vi: networks of mean-field layers, as stand-ins with the libraries' names."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.posterior.exact import two_layers
from varprop.errors import PosteriorError, PosteriorMismatchError
from varprop.posterior import Posterior

STD = 0.2


def softplus_inverse(std):
    return math.log(math.expm1(std))


class Layer(nn.Module):
    """A linear mean-field layer whose parameters are called as the library at hand calls them."""

    def __init__(self, inner, outer, mean, spread, raw, weight="weight", std=lambda x: x):
        super().__init__()
        self.keys = [(mean.format(name), spread.format(name)) for name in (weight, "bias")]
        for (mu, sigma), shape in zip(self.keys, ((outer, inner), (outer,)), strict=True):
            setattr(self, mu, nn.Parameter(torch.randn(shape)))
            setattr(self, sigma, nn.Parameter(raw + 0.1 * torch.rand(shape)))
        self.register_buffer("eps_weight", torch.zeros(outer, inner))
        self.std = std

    def forward(self, x):
        pairs = [(getattr(self, mu), self.std(getattr(self, sigma))) for mu, sigma in self.keys]
        return F.linear(x, *(mu + std * torch.randn_like(mu) for mu, std in pairs))


LAYOUTS = {
    "bayesian-torch": ("mu_{}", "rho_{}", softplus_inverse(STD), "weight", F.softplus),
    "bayesian-torch conv": ("mu_{}", "rho_{}", softplus_inverse(STD), "kernel", F.softplus),
    "blitz": ("{}_mu", "{}_rho", softplus_inverse(STD), "weight", F.softplus),
    "torchbnn": ("{}_mu", "{}_log_sigma", math.log(STD), "weight", torch.exp),
    "sigma": ("{}_mu", "{}_sigma", STD, "weight", lambda x: x),
    "log variance": ("{}_mu", "{}_logvar", 2 * math.log(STD), "weight", lambda x: (x / 2).exp()),
    "W": ("{}_mu", "{}_rho", softplus_inverse(STD), "W", F.softplus),
}


def stand_in(name="bayesian-torch"):
    mean, spread, raw, weight, std = LAYOUTS[name]
    torch.manual_seed(2)
    layers = [Layer(*size, mean, spread, raw, weight, std) for size in ((3, 4), (4, 2))]
    return nn.Sequential(*layers).double()


class Sampler(nn.Module):
    """Holds parameters of its own beside the layer's, as in blitz."""

    def __init__(self, mu, rho):
        super().__init__()
        self.mu, self.rho = nn.Parameter(mu.detach().clone()), nn.Parameter(rho.detach().clone())


class Sampled(nn.Module):
    """As in blitz, and as in torch-uncertainty, where weight_sigma is what goes through the softplus."""

    def __init__(self, inner, outer, spread, bias=True):
        super().__init__()
        self.bias = bias
        for name, shape in (("weight", (outer, inner)), ("bias", (outer,))):
            setattr(self, f"{name}_mu", nn.Parameter(torch.randn(shape)))
            setattr(self, f"{name}_{spread}", nn.Parameter(torch.randn(shape) - 3))
            setattr(self, f"{name}_sampler", Sampler(torch.randn(shape), torch.randn(shape)))


class Mixed(nn.Module):
    """Random layers among deterministic ones, with a buffer."""

    def __init__(self, linear):
        super().__init__()
        self.embed = nn.Embedding(7, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = linear(3, 4)

    def forward(self, tokens):
        return self.head(self.norm(self.embed(tokens)))


def failure(model, bayesian, kind=PosteriorMismatchError):
    with pytest.raises(kind) as caught:
        Posterior.from_vi(model, bayesian)
    assert type(caught.value) is kind
    return str(caught.value)


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name):
    model, bayesian = two_layers(), stand_in(name)
    posterior = Posterior.from_vi(model, bayesian)
    assert posterior.names == ("0.weight", "0.bias", "1.weight", "1.bias")
    for index, end in ((0, "weight"), (0, "bias"), (1, "weight"), (1, "bias")):
        mu, sigma = bayesian[index].keys[end == "bias"]
        pair = posterior[f"{index}.{end}"]
        assert torch.equal(pair.mean, getattr(bayesian[index], mu))
        assert (pair.std >= STD * 0.999).all()
        torch.testing.assert_close(pair.std, bayesian[index].std(getattr(bayesian[index], sigma)).detach())


def test_extreme_spreads_stay_finite():
    model, bayesian = two_layers().float(), stand_in().float()
    with torch.no_grad():
        bayesian[0].rho_weight[0], bayesian[0].rho_weight[1] = 100.0, -30.0  # exp(100) is no float32
    std = Posterior.from_vi(model, bayesian)["0.weight"].std
    torch.testing.assert_close(std[0], torch.full((3,), 100.0))
    torch.testing.assert_close(std[1], torch.full((3,), math.exp(-30)), rtol=1e-5, atol=0)


@pytest.mark.parametrize("spread", ["rho", "sigma"])
def test_samplers_come_before_the_layers_own_parameters(spread):
    bayesian = nn.Sequential(Sampled(3, 4, spread), Sampled(4, 2, spread))
    posterior = Posterior.from_vi(two_layers().float(), bayesian)
    assert len(posterior) == 4
    for name in ("weight", "bias"):
        sampler = getattr(bayesian[1], f"{name}_sampler")
        assert torch.equal(posterior[f"1.{name}"].mean, sampler.mu)
        torch.testing.assert_close(posterior[f"1.{name}"].std, F.softplus(sampler.rho).detach())


def test_a_bias_that_is_not_used_is_no_bias():
    plain = nn.Sequential(nn.Linear(3, 4, bias=False))
    assert Posterior.from_vi(plain, nn.Sequential(Sampled(3, 4, "rho", bias=False))).names == ("0.weight",)


def mixed():
    torch.manual_seed(3)
    mean, spread, raw, _, _ = LAYOUTS["torchbnn"]
    bayesian = Mixed(lambda i, o: Layer(i, o, mean, spread, raw))
    bayesian.norm.running_mean.normal_()
    return Mixed(nn.Linear), bayesian


def test_values_that_are_not_random_must_be_the_same():
    model, bayesian = mixed()
    text = failure(model, bayesian)
    assert "are not random and differ from the Bayesian network's" in text
    assert "'embed.weight'" in text
    assert "'norm.running_mean'" in text
    assert "head" not in text
    assert "norm.weight" not in text, "ones in both"
    assert "model.load_state_dict(bayesian.state_dict(), strict=False)" in text
    model.load_state_dict(bayesian.state_dict(), strict=False)  # the advice must work
    assert Posterior.from_vi(model, bayesian).names == ("head.weight", "head.bias")


def test_wrapped_networks():
    model, bayesian = two_layers(), stand_in()
    assert len(Posterior.from_vi(model, nn.DataParallel(bayesian))) == 4
    assert Posterior.from_vi(nn.DataParallel(model), bayesian).names[0] == "module.0.weight"


def test_no_layers_we_know():
    text = failure(two_layers(), two_layers(), PosteriorError)
    assert "no mean-field layers in this Sequential; its parameters are" in text
    assert "0.weight (4, 3)" in text
    assert "mu_weight with rho_weight" in text
    assert "the model comes first, not dict" in failure({}, two_layers(), PosteriorError)
    assert "a dict is no Bayesian network" in failure(two_layers(), {}, PosteriorError)


def test_everything_that_does_not_correspond_is_listed():
    bayesian = stand_in()
    del bayesian[0].rho_bias  # a mean without a spread
    bayesian[1].temperature = nn.Parameter(torch.ones(1))
    bayesian[1].mu_bias = nn.Parameter(torch.ones(3))
    plain = nn.Sequential(nn.Linear(3, 5), nn.Linear(4, 2), nn.LayerNorm(2)).double()
    text = failure(plain, bayesian)
    for phrase in (
        "Sequential and Sequential do not correspond",
        "mu_bias and rho_bias of Layer have shapes (3,) and (2,)",
        "'0.weight' has shape (4, 3), in the model (5, 3)",
        "'0.mu_bias' (4,) is neither random nor a parameter of the plain network",
        "'1.temperature' (1,) is neither random nor a parameter of the plain network",
        "'0.bias' of the plain network has no counterpart",
        "'2.weight' of the plain network has no counterpart",
        "Known are layers with mu_weight with rho_weight",
    ):
        assert phrase in text
    renamed = nn.ModuleDict({"body": bayesian[1]})
    assert "'body.weight' is not a parameter" in failure(two_layers(), renamed)


def test_negative_standard_deviations_and_nan():
    bayesian = stand_in("sigma")
    with torch.no_grad():
        bayesian[0].weight_sigma[0, 0] = -4.0
        bayesian[1].bias_mu[0] = torch.nan
    text = failure(two_layers(), bayesian)
    assert "weight_mu and weight_sigma of Layer: 1 of 12 standard deviations are negative" in text
    assert "bias_mu and bias_sigma of Layer: one is NaN or infinite in 1 of 2 entries" in text


def test_two_posteriors_for_one_tied_weight():
    bayesian = nn.Sequential(*(Layer(3, 3, "mu_{}", "rho_{}", 0.0) for _ in range(2)))
    plain = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    plain[1].weight = plain[0].weight
    assert "'0.weight' has two posteriors" in failure(plain, bayesian)
    shared = nn.Sequential(bayesian[0], bayesian[0])
    plain = nn.Sequential(plain[0], plain[0])
    assert Posterior.from_vi(plain, shared).names == ("0.weight", "0.bias")
