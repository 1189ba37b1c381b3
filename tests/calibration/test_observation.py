import math

import pytest
import torch
from torch import nn

import varprop as vp
from tests.models import posterior_of
from varprop.calibration.observation import with_noise
from varprop.errors import InputError
from varprop.evaluation.methods import named

X = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True) + 0.7 * torch.randn(200, 1, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.Linear(3, 1).eval()


def test_what_the_variance_of_the_weights_does_not_explain(model):
    """Where only the bias is random, all outputs have its variance, and the rest of the mean square error is noise."""
    error = float((model(X).detach() - Y).square().mean())
    plain = with_noise(vp.MeanNetwork(model, link=vp.links.Gaussian()), [(X[:50], Y[:50]), (X[50:], Y[50:])])
    assert plain.link.noise_std == pytest.approx(math.sqrt(error), rel=1e-4)
    bias = vp.Posterior.from_tensors({"bias": model.bias.detach()}, {"bias": torch.full((1,), 0.4 * error)})
    net = vp.propagate(model, bias)
    found = with_noise(vp.Propagated(net, link=vp.links.Gaussian()), [(X, Y)])
    assert found.link.noise_std**2 == pytest.approx(0.6 * error, rel=1e-3)


def test_methods_of_a_regression_know_the_noise(model):
    for name in ("mean", "mc-2"):
        predictor = named(name).build(model, posterior_of(model, 0.01), [(X, Y)], link=vp.links.Gaussian())
        assert vp.evaluate(predictor, [(X, Y)], progress=False).metrics["picp@95"] == pytest.approx(0.95, abs=0.03)
    given = named("mean").build(model, posterior_of(model, 0.01), [(X, Y)], link=vp.links.Gaussian(0.2))
    assert given.link.noise_std == 0.2


def test_what_is_refused(model):
    with pytest.raises(InputError, match="no noise to fit"):
        with_noise(vp.MeanNetwork(model, link=vp.links.Gaussian(0.2)), [(X, Y)])
