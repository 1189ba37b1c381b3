"""Layers whose weights have one common variance: the same moments, by a sum in place of a product."""

import pytest
import torch
from torch import nn

import varprop as vp
from varprop.calibration.widths import PosteriorWidth
from varprop.graph import uniform

aten = torch.ops.aten


class Product(nn.Module):
    """x W, as GPT-2 writes its layers."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 5)), nn.Parameter(torch.randn(5))

    def forward(self, x):
        return torch.addmm(self.bias, x, self.weight).relu() @ self.weight.t()


MODELS = {
    "linear": (
        nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4, bias=False), nn.ReLU(), nn.Linear(4, 3)),
        (5, 6),
    ),
    "tokens": (nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)), (2, 5, 6)),
    "one example": (nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)), (6,)),
    "matmul": (Product(), (5, 6)),
    "conv1d": (nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU(), nn.Conv1d(4, 5, 2, stride=2, bias=False)), (2, 3, 9)),
    "conv2d": (nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 3, dilation=2)), (2, 3, 9, 8)),
    "conv3d": (nn.Sequential(nn.Conv3d(2, 4, 2), nn.ReLU(), nn.Conv3d(4, 2, 2)), (2, 2, 4, 4, 5)),
    "groups": (nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3, groups=2)), (2, 4, 6, 6)),
    "unbatched": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)), (3, 9, 8)),
}


def moments_and_gradients(model, x):
    net = vp.propagate(model, vp.Posterior.isotropic(model, std=0.1))
    net.capture(x)
    for scale in net.scale.parameters():
        scale.requires_grad_().data.fill_(0.3)
    y = net(x)
    gradients = torch.autograd.grad(y.mean.sum() + y.var.sum(), list(net.scale.parameters()))
    return net, (*y, torch.stack(gradients))


def products(net):
    layers = uniform.LAYERS + uniform.CONVOLUTIONS
    return sum(
        node.target in layers and "var." in str(node.args[1].target) for node in net._plans[0].module.graph.nodes
    )


@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_same_as_the_product(name, monkeypatch):
    torch.manual_seed(0)
    model, shape = MODELS[name]
    model, x = model.double().eval(), torch.randn(shape, dtype=torch.float64)
    net, found = moments_and_gradients(model, x)
    monkeypatch.setattr(uniform, "_is_uniform", lambda _: False)
    written_out, expected = moments_and_gradients(model, x)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)
    assert products(net) < products(written_out)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors is a no-op")
def test_a_layer_without_outputs():
    class Empty(nn.Module):
        def __init__(self):
            super().__init__()
            self.none, self.some = nn.Linear(4, 0), nn.Linear(4, 3)

        def forward(self, x):
            return self.some(x) + self.none(x).sum(-1, keepdim=True)

    torch.manual_seed(0)
    model, x = Empty().eval(), torch.randn(2, 4)
    result = vp.propagate(model, vp.Posterior.isotropic(model, std=0.1))(x)
    expected = 0.01 * (x.square().sum(-1, keepdim=True) + 1).expand(2, 3)
    torch.testing.assert_close(result.var, expected)


def test_weights_that_are_loaded_may_be_of_another_kind():
    torch.manual_seed(0)
    model, shape = MODELS["linear"]
    mean, x = dict(model.named_parameters()), torch.randn(shape, dtype=next(model.parameters()).dtype)
    other = vp.Posterior.from_tensors(mean, {name: 0.1 * torch.rand_like(p) for name, p in mean.items()})
    net, expected = vp.propagate(model, vp.Posterior.isotropic(model)), vp.propagate(model, other)
    net(x)
    expected(x)
    net.load_state_dict(expected.state_dict())
    torch.testing.assert_close(tuple(net(x)), tuple(expected(x)))


def test_variances_may_be_scaled():
    """As calibration does, in search of the posterior's width."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 3)).eval()
    x, labels = torch.randn(80, 6), torch.randint(0, 3, (80,))
    fitted = vp.calibrate(vp.propagate(model, vp.Posterior.isotropic(model)), [(x, labels)], progress=False)
    fresh = vp.propagate(model, vp.Posterior.from_tensors(dict(fitted.mean), dict(fitted.var)))
    fresh.capture(x)
    fresh.load_state_dict(fitted.state_dict())
    fresh.temperature = fitted.temperature
    torch.testing.assert_close(tuple(fresh(x)), tuple(fitted(x)))


@pytest.mark.parametrize("rules", [vp.CVP, vp.STREAMLINING, vp.FACTORED], ids=lambda rules: rules.name)
def test_what_is_captured_while_the_width_is_0(rules):
    """As in a search for the width: a graph of its own for another number of dimensions."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
    mean = dict(model.named_parameters())
    posterior = vp.Posterior.from_tensors(mean, {name: 0.01 * torch.rand_like(x) for name, x in mean.items()})
    net, x = vp.propagate(model, posterior, rules), torch.randn(2, 5, 6)
    net.capture(x[0])
    width = PosteriorWidth(net)
    width.set(0.0)
    net.capture(x)
    width.set(0.2)
    again = vp.propagate(model, vp.Posterior.from_tensors(dict([*net.mean]), dict([*net.var])), rules)
    torch.testing.assert_close(net(x).var, again(x).var)
    torch.testing.assert_close(net(x[0]).var, again(x[0]).var)
