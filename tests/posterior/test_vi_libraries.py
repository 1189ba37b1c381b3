"""from_vi on networks of bayesian-torch, torchbnn and blitz, against what these networks themselves draw."""

import copy

import pytest
import torch
from torch import nn

import varprop as vp
from tests.posterior.exact import assert_agrees, drawn, inputs, two_layers
from varprop.errors import PosteriorMismatchError
from varprop.posterior import Posterior

PRIORS = {
    "prior_mu": 0.0,
    "prior_sigma": 1.0,
    "posterior_mu_init": 0.0,
    "posterior_rho_init": -1.0,
    "moped_enable": False,
    "moped_delta": 0.5,
}


def mismatch(model, bayesian):
    with pytest.raises(PosteriorMismatchError) as caught:
        Posterior.from_vi(model, bayesian)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["Reparameterization", "Flipout"])
def test_bayesian_torch(kind):
    conversion = pytest.importorskip("bayesian_torch.models.dnn_to_bnn")
    model = two_layers()
    bayesian = copy.deepcopy(model)
    conversion.dnn_to_bnn(bayesian, {**PRIORS, "type": kind})
    bayesian.double()
    posterior = Posterior.from_vi(model, bayesian)
    assert len(posterior) == 4
    torch.testing.assert_close(posterior["1.bias"].std, bayesian[1].rho_bias.exp().log1p().detach())
    assert_agrees(vp.propagate(model.eval(), posterior)(inputs()), drawn(bayesian))


def test_bayesian_torch_with_convolutions_and_batch_norm():
    conversion = pytest.importorskip("bayesian_torch.models.dnn_to_bnn")
    torch.manual_seed(0)

    def plain():
        layers = [nn.BatchNorm2d(2), nn.Conv2d(2, 4, 2, groups=2, bias=False), nn.Flatten(), nn.Linear(16, 3)]
        return nn.Sequential(*layers).double()

    bayesian = plain()
    bayesian[0].running_mean.normal_()
    nn.init.normal_(bayesian[0].weight)
    conversion.dnn_to_bnn(bayesian, {**PRIORS, "type": "Reparameterization"})
    bayesian.double().eval()
    model = plain().eval()
    assert "'0.running_mean'" in mismatch(model, bayesian)
    model.load_state_dict(bayesian.state_dict(), strict=False)
    posterior = Posterior.from_vi(model, bayesian)
    assert posterior.names == ("1.weight", "3.weight", "3.bias")
    assert torch.equal(posterior["1.weight"].mean, bayesian[1].mu_kernel)
    x = torch.randn(3, 2, 3, 3, generator=torch.Generator().manual_seed(1)).double()
    features = model[:3]
    torch.manual_seed(6)
    with torch.no_grad():
        draws = torch.stack([bayesian[:3](x) for _ in range(1000)])
    # Neighbouring pixels share a kernel, which only the last layer notices: the convolution's own moments are exact.
    assert_agrees(vp.propagate(features, posterior.restrict("1"))(x), draws)


def test_bayesian_torch_lstm_is_refused():
    layers = pytest.importorskip("bayesian_torch.layers")
    text = mismatch(nn.Sequential(nn.LSTM(3, 4)), nn.Sequential(layers.LSTMReparameterization(3, 4)))
    assert "'0.ih.weight' is not a parameter" in text
    assert "'0.weight_ih_l0' of the plain network has no counterpart" in text


def test_torchbnn():
    library = pytest.importorskip("torchbnn")
    torch.manual_seed(0)
    layers = (library.BayesLinear(0, 0.2, 3, 4), library.BayesLinear(0, 0.3, 4, 2))
    bayesian, model = nn.Sequential(*layers).double(), two_layers()
    posterior = Posterior.from_vi(model, bayesian)
    torch.testing.assert_close(posterior["1.weight"].std, torch.full((2, 4), 0.3).double())
    assert_agrees(vp.propagate(model.eval(), posterior)(inputs()), drawn(bayesian))


def test_torchbnn_convolution_batch_norm_and_no_bias():
    library = pytest.importorskip("torchbnn")
    layers = (library.BayesConv2d(0, 0.2, 2, 4, 3, bias=False), library.BayesBatchNorm2d(0, 0.1, 4))
    posterior = Posterior.from_vi(
        nn.Sequential(nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4)), nn.Sequential(*layers)
    )
    assert posterior.names == ("0.weight", "1.weight", "1.bias")


def test_blitz_after_training_a_moved_network():
    """.double(), like .cuda(), parts weight_mu from the sampler's mu, and only the sampler's trains on."""
    library = pytest.importorskip("blitz.modules")
    torch.manual_seed(0)
    bayesian = nn.Sequential(library.BayesianLinear(3, 4), library.BayesianLinear(4, 2)).double()
    optimizer = torch.optim.SGD(bayesian.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        bayesian(inputs()).square().sum().backward()
        optimizer.step()
    assert not torch.equal(bayesian[0].weight_mu, bayesian[0].weight_sampler.mu), "the trap should be there"
    model = two_layers()
    assert_agrees(vp.propagate(model.eval(), Posterior.from_vi(model, bayesian))(inputs()), drawn(bayesian))


def test_blitz_without_bias():
    library = pytest.importorskip("blitz.modules")
    plain = nn.Sequential(nn.Linear(3, 4, bias=False))
    assert Posterior.from_vi(plain, nn.Sequential(library.BayesianLinear(3, 4, bias=False))).names == ("0.weight",)
