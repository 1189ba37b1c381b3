"""Linear layers of one input as one product, and sums of convolutions as one."""

import copy

import pytest
import torch
from torch import nn

import varprop as vp
from tests.graph.test_fuse import noisy
from varprop.graph import compiler

aten = torch.ops.aten


class Heads(nn.Module):
    """Queries, keys and values of different sizes; ``plain`` reads the keys as they are."""

    def __init__(self, *, bias=True, plain=False):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(12, 16, bias=bias), nn.Linear(12, 8, bias=bias), nn.Linear(12, 8, bias=bias)
        self.out, self.plain = nn.Linear(16, 3), plain

    def forward(self, x):
        results = self.q(x), self.k(x), self.v(x)
        q, k, v = (y.view(x.shape[0], x.shape[1], -1, 4).transpose(1, 2) for y in results)
        y = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2)
        return self.out(y) + (results[1].mean() if self.plain else 0)


@pytest.fixture
def products(monkeypatch):
    """Networks without and with merged products, and how many of these ops each graph has."""

    def build(model, x, op=aten.linear.default):
        posterior, found = noisy(model), []
        for merged in (False, True):
            monkeypatch.setattr(compiler, "runs_on", lambda _, merged=merged: merged)
            net = vp.propagate(copy.deepcopy(model), posterior)
            net.capture(x)
            found.append((net, len(net._plans[0].module.graph.find_nodes(op="call_function", target=op))))
        return found

    return build


@pytest.mark.parametrize("bias", [True, False])
def test_projections_are_one_product_and_say_the_same(products, bias):
    torch.manual_seed(0)
    x = torch.randn(2, 5, 12)
    (apart, many), (merged, few) = products(Heads(bias=bias).eval(), x)
    assert many - few == 2
    for y in (x, torch.randn(3, 5, 12)):
        torch.testing.assert_close(tuple(merged(y)), tuple(apart(y)))


def test_what_is_read_as_it_is_stays_alone(products):
    (_, many), (_, few) = products(Heads(plain=True).eval(), torch.randn(2, 5, 12))
    assert many - few == 1


def test_loaded_weights_reach_the_product(products):
    torch.manual_seed(0)
    x, model, other = torch.randn(2, 5, 12), Heads().eval(), Heads().eval()
    _, (merged, _) = products(model, x)
    (expected, _), _ = products(other, x)
    merged.load_state_dict(expected.state_dict())
    torch.testing.assert_close(tuple(merged(x)), tuple(expected(x)))


@pytest.mark.parametrize(
    ("options", "count"), [({}, 4), ({"bias": False, "stride": 2, "padding": 1}, 4), ({"groups": 2}, 5)]
)
def test_variance_and_squared_mean_go_through_one_convolution(products, options, count):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3, **options), nn.ReLU()).eval()
    x = torch.randn(2, 3, 8, 7)
    (apart, many), (merged, few) = products(model, x, aten.conv2d.default)
    assert (many, few) == (5, count)
    torch.testing.assert_close(tuple(merged(x)), tuple(apart(x)))
