"""Whole networks of Triton's kernels: the same moments as the rules in float64."""

import copy

import pytest
import torch
from torch import nn

import varprop as vp
from tests.graph.test_fuse import residual
from tests.kernels.places import DEVICE, with_triton


class Encoder(nn.Module):
    """Two blocks with everything that has a kernel: norms, attention, an activation, residual sums."""

    def __init__(self, width=48, heads=3):
        super().__init__()
        self.heads, self.embed, self.head = heads, nn.Linear(7, width), nn.Linear(width, 5)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width)) for _ in range(2))

    def forward(self, x):
        x = self.embed(x)
        for i in range(2):
            parts = self.qkv[i](self.norms[2 * i](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(*parts)
            x = x + self.out[i](y.transpose(1, 2).flatten(2))
            x = x + self.mlp[i](self.norms[2 * i + 1](x))
        return self.head(self.norms[4](x)[:, 0])


MODELS = {"transformer": (Encoder, (3, 19, 7)), "cnn": (residual, (2, 3, 6, 5))}


@with_triton
@pytest.mark.parametrize("rules", [vp.CVP, vp.FACTORED, vp.STREAMLINING], ids=lambda rules: rules.name)
@pytest.mark.parametrize("name", MODELS)
def test_kernels_compute_what_the_rules_do(name, rules, caplog):
    build, shape = MODELS[name]
    torch.manual_seed(0)
    model, x = build().eval(), torch.randn(shape)
    wide = copy.deepcopy(model).double()
    exact = vp.propagate(wide, vp.Posterior.isotropic(wide, std=0.05), rules)(x.double())  # kernels have no float64
    model, x = model.to(DEVICE), x.to(DEVICE)
    net = vp.propagate(model, vp.Posterior.isotropic(model, std=0.05), rules)
    with torch.no_grad():
        result = net(x)
    assert "no Triton kernel" not in caplog.text
    for got, wanted in zip(result, exact, strict=True):
        torch.testing.assert_close(got.double().cpu(), wanted, rtol=1e-4, atol=1e-5)
    net.scale.requires_grad_(True)
    result = net(x)
    (result.mean.sum() + result.var.sum()).backward()
    assert all(scale.grad is None or scale.grad.isfinite() for scale in net.scale.parameters())
