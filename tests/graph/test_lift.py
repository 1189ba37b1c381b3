"""Lifting writes a rule down once for all layers alike, for every size that capture left free."""

import torch
from torch import nn

import varprop as vp
from tests.models import posterior_of

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
