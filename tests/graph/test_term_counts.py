"""Factored variances of other numbers of terms share a trace, unless a rule asks how many there are."""

from collections import Counter

import pytest
import torch
from torch import nn

import varprop as vp
from tests.models import posterior_of
from varprop.graph.trace_cache import TraceCache
from varprop.moments import Factored

aten = torch.ops.aten


class Residual(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(6) for _ in range(depth))
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(depth))

    def forward(self, x):
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return x


def traces_of(depth, rules, monkeypatch):
    made = Counter()
    trace = TraceCache._trace

    def counted(self, function, *args):
        step = trace(self, function, *args)
        made[getattr(step.note, "name", "")] += 1
        return step

    with monkeypatch.context() as patch:
        patch.setattr(TraceCache, "_trace", counted)
        model = Residual(depth).eval()
        net = vp.propagate(model, posterior_of(model), rules)
        net.capture(torch.randn(3, 5, 6))
    return made, net


def test_a_deeper_network_takes_no_more_traces(monkeypatch):
    (few, _), (many, net) = (traces_of(depth, vp.FACTORED, monkeypatch) for depth in (5, 9))
    assert few == many
    assert len(net.signatures) == 1
    assert "s" in net.signatures[0]  # sizes are free as before


@pytest.mark.parametrize("asks", [False, True])
def test_what_is_written_is_what_would_be_traced(asks, monkeypatch):
    """A rule that acts otherwise on few terms is traced for each number of them."""

    @vp.rule(aten.layer_norm.default, approximation="for a test", mixes=True, scaled=True, factored=True)
    def norm(x, *args):
        result = vp.FACTORED[aten.layer_norm.default](x, *args)
        return result.map_var(lambda var: 2 * var) if asks and isinstance(x, Factored) and len(x[1]) > 5 else result

    torch.manual_seed(0)
    made, net = traces_of(6, vp.FACTORED.replace(norm), monkeypatch)
    assert (made["norm"] > 5) == asks
    monkeypatch.setattr(TraceCache, "_of_any_count", lambda *_: None)
    torch.manual_seed(0)
    each, reference = traces_of(6, vp.FACTORED.replace(norm), monkeypatch)
    assert each["norm"] == 6
    assert net._plans[0].module.code == reference._plans[0].module.code
    assert net.signatures == reference.signatures
    x = torch.randn(4, 5, 6)
    torch.testing.assert_close(tuple(net(x)), tuple(reference(x)), rtol=0, atol=0)


def test_what_results_share_is_computed_once(monkeypatch):
    """E[W²] of a layer, of which the sums over rows and over columns are kept."""
    from varprop.graph import fold

    calls = Counter()
    evaluate = fold.evaluate

    def counted(nodes, values):
        nodes = list(nodes)
        calls.update(str(node.target) for node in nodes if node.op == "call_function")
        evaluate(nodes, values)

    monkeypatch.setattr(fold, "evaluate", counted)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    net = vp.propagate(model, posterior_of(model), vp.FACTORED)
    net.capture(torch.randn(2, 4))
    squares = calls["aten.square.default"] + calls["aten.mul.Tensor"] + calls["aten.pow.Tensor_Scalar"]
    assert squares == 1, calls
    before = {name: tensor.clone() for name, tensor in net.folded}
    fold.refold(net)
    assert before.keys() == dict(net.folded).keys()
    assert all(torch.equal(before[name], tensor) for name, tensor in net.folded)
