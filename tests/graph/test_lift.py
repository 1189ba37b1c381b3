"""Lifting writes a rule down once for all layers alike, for every size that capture left free."""

import warnings

import pytest
import sympy
import torch
from torch import nn
from torch.utils._sympy.functions import Min

import varprop as vp
from tests.models import posterior_of
from varprop.graph import trace_cache

aten = torch.ops.aten


def linear_that(note):
    @vp.rule(aten.linear.default, approximation="for a test", mixes=True)
    def linear(x, weight, bias=None):
        note(vp.moments.mean_of(x))
        return vp.CVP[aten.linear.default](x, weight, bias)

    return vp.CVP.replace(linear)


def test_layers_alike_are_traced_once():
    seen = []
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)])
    net = vp.propagate(model, posterior_of(model), linear_that(lambda x: seen.append(x.shape)))
    net.capture(torch.randn(3, 4))
    assert len(seen) == 2  # a first layer, whose input has no variance, and the others
    x = torch.randn(5, 4)
    reference = vp.propagate(model, posterior_of(model))(x)
    torch.testing.assert_close(tuple(net(x)), tuple(reference))


def test_a_rule_that_asks_for_a_size_fixes_it():
    def ask(x):
        assert x.shape[0] % 4 == 0

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    net = vp.propagate(model, posterior_of(model), linear_that(ask))
    net.capture(torch.randn(8, 4))
    assert "[8, 4]" in net.signatures[0]


@pytest.mark.parametrize("size", [1, 3, 40])
def test_a_convolution_serves_batches_of_any_size(size):
    """Torch chooses a kernel by the size of the batch, which is no reason for another graph."""
    model = nn.Conv1d(4, 4, 3, padding=1).eval()
    net = vp.propagate(model, posterior_of(model, 1e-3))
    net(torch.randn(5, 4, 9))
    with warnings.catch_warnings(action="error"):
        found = net(torch.randn(size, 4, 9))
    assert found.mean.shape == found.var.shape == (size, 4, 9)
    assert len(net.signatures) == 1


def test_what_holds_for_all_sizes_is_no_condition():
    """Torch 2.11 notes such things while it reshapes a tensor of several free sizes."""
    n = sympy.Symbol("s0", integer=True)
    assert trace_cache._holds(32 * n >= Min(8 * n, 16 * n))
    for condition in (sympy.Eq(n, 3), n >= 2, 9 * n >= Min(8 * n, 16), 7 * n >= Min(8 * n, 16 * n)):
        assert not trace_cache._holds(condition)
