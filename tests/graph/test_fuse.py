"""Pointwise steps that follow each other as one: which, what they compute, and in what layouts."""

import copy

import pytest
import torch
from torch import nn

import varprop as vp
from tests.kernels.places import DEVICE, INTERPRETED, with_triton
from varprop.graph import compiler, lift

CHANNELS_LAST = torch.channels_last


class Residual(nn.Module):
    """Convolutions, norms with fixed statistics, activations, a sum."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second, self.other = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.norm(self.first(x)).relu()
        return self.head((self.other(self.second(x)) + x).relu().mean((2, 3)))


def residual():
    torch.manual_seed(0)
    model = Residual().eval()
    for norm in (model.norm, model.other):
        for tensor, low in ((norm.running_mean, -1.0), (norm.running_var, 0.5), (norm.weight, 0.5), (norm.bias, -1.0)):
            nn.init.uniform_(tensor, low, low + 1.5)
    return model


@pytest.fixture
def fused(monkeypatch):
    """A network as on a GPU, its regions, and the same without."""

    def build(model, rules=vp.CVP):
        posterior = noisy(model)
        plain = vp.propagate(copy.deepcopy(model), posterior, rules)
        for module in (lift, compiler):
            monkeypatch.setattr(module, "runs_on", lambda _: True)
        return vp.propagate(model, posterior, rules), plain

    return build


def noisy(model):
    """A posterior whose variances differ: others need no second product."""
    mean = dict(model.named_parameters())
    return vp.Posterior.from_tensors(mean, {name: 0.02 * torch.rand_like(p) for name, p in mean.items()})


def regions(net):
    return [module for name, module in net.pointwise.items() if name.startswith("region")]


@pytest.mark.parametrize("rules", [vp.CVP, vp.FACTORED, vp.STREAMLINING], ids=lambda rules: rules.name)
def test_a_norm_a_sum_and_an_activation_are_one_step(fused, rules):
    net, plain = fused(residual(), rules)
    x = torch.randn(2, 3, 6, 5)
    torch.testing.assert_close(tuple(net(x)), tuple(plain(x)))
    steps = [node for node in net._plans[0].module.graph.nodes if "region" in str(node.target)]
    alone = [node for node in net._plans[0].module.graph.nodes if str(node.target).startswith("pointwise.relu")]
    assert len(steps) >= 2
    assert not alone
    for y in (torch.randn(3, 3, 6, 5), x.to(memory_format=CHANNELS_LAST)):
        torch.testing.assert_close(tuple(net(y)), tuple(plain(y)))


def test_equal_regions_share_a_module(fused):
    layers = [layer for _ in range(4) for layer in (nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU())]
    net, _ = fused(nn.Sequential(*layers, nn.Flatten(), nn.Linear(36, 2)).eval())
    net(torch.randn(2, 4, 3, 3))
    called = [node.target for node in net._plans[0].module.graph.nodes if "region" in str(node.target)]
    assert len(called) == 4
    assert len(set(called)) == 2  # but for the last, which nothing squares


def test_scales_have_the_gradients_they_had(fused):
    gradients = []
    x = torch.randn(2, 3, 6, 5)
    for net in fused(residual()):
        net(x)
        net.scale.requires_grad_(True)
        mean, var = net(x)
        (mean.sum() + var.sum()).backward()
        gradients.append(torch.stack([p.grad for p in net.scale.parameters()]))
    torch.testing.assert_close(*gradients)


def test_networks_with_regions_are_copied_calibrated_and_saved(fused, tmp_path):
    model = residual()
    net, _ = fused(model)
    inputs, labels = torch.randn(40, 3, 6, 5), torch.randint(0, 4, (40,))
    fitted = vp.calibrate(copy.deepcopy(net), [(inputs, labels)], progress=False)
    expected = fitted(inputs)
    fitted.save_pretrained(tmp_path / "net")
    loaded = vp.MomentNet.from_pretrained(tmp_path / "net", model)
    torch.testing.assert_close(tuple(loaded(inputs)), tuple(expected))


@with_triton
@pytest.mark.parametrize("layout", [torch.contiguous_format, CHANNELS_LAST])
@pytest.mark.parametrize("rules", [vp.CVP, vp.FACTORED], ids=lambda rules: rules.name)
def test_the_kernel_says_what_the_steps_say(rules, layout):
    model = residual().to(DEVICE)
    net = vp.propagate(model, noisy(model), rules)
    x = torch.randn(2, 3, 6, 5).to(DEVICE, memory_format=layout)
    net(x)
    seen = []
    for module in regions(net):
        module.register_forward_hook(lambda module, args, result: seen.append((module, args, result)))
    with torch.no_grad():
        net.plan((x,), {})[0].module(x)
    assert len(seen) == len(regions(net))
    assert any(max(module.widths) > 1 for module, _, _ in seen) == (rules is vp.CVP)  # variance and square, for a layer
    for module, args, result in seen:
        if any(x.ndim == 4 for x in args):  # of images; outer products of vectors have no kernel
            assert module.launch(*args) is not None
        torch.testing.assert_close(result, module.steps(*args))
    assert all(x.is_contiguous(memory_format=layout) for _, args, _ in seen for x in args if x.ndim == 4 and len(x) > 1)


@with_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rules", [vp.CVP, vp.FACTORED], ids=lambda rules: rules.name)
def test_by_triton(rules, dtype):
    model = residual()
    exact = vp.propagate(copy.deepcopy(model).double(), vp.Posterior.isotropic(model.double(), std=0.1), rules)
    model = model.to(DEVICE, dtype)
    net = vp.propagate(model, vp.Posterior.isotropic(model, std=0.1), rules)
    for shape, layout in (((2, 3, 6, 5), torch.contiguous_format), ((7, 3, 6, 5), CHANNELS_LAST)):
        x = torch.randn(shape).to(memory_format=layout)
        with torch.no_grad():
            result, expected = net(x.to(DEVICE, dtype)), exact(x.to(dtype).double())
        tolerance = 1e-4 if dtype is torch.float32 else 0.1 if INTERPRETED else 5e-2
        assert regions(net)
        for got, wanted in zip(result, expected, strict=True):
            torch.testing.assert_close(got.double().cpu(), wanted, rtol=tolerance, atol=tolerance)
