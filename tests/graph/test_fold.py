"""What depends on weights alone is not computed again in every call."""

import pytest
import torch
from torch import nn

import varprop as vp
from varprop.graph import compiler, lift
from varprop.kernels import float8

LARGE = 1040  # squared, more entries than are folded whatever they come from


def layers(kind):
    if kind == "conv":
        first, wide = nn.Conv2d(3, LARGE, 1), nn.Conv2d(LARGE, LARGE, 1)
        return nn.Sequential(first, nn.BatchNorm2d(LARGE), nn.ReLU(), wide, nn.GELU()), torch.randn(2, 3, 4, 4)
    first, wide, last = nn.Linear(48, LARGE), nn.Linear(LARGE, LARGE), nn.Linear(LARGE, 16)
    return nn.Sequential(first, nn.LayerNorm(LARGE), nn.GELU(), wide, nn.ReLU(), last), torch.randn(5, 48)


@pytest.mark.parametrize("accelerated", [False, True])
@pytest.mark.parametrize("rules", [vp.CVP, vp.FACTORED, vp.STREAMLINING], ids=lambda rules: rules.name)
@pytest.mark.parametrize("kind", ["linear", "conv"])
@pytest.mark.parametrize("uniform", [True, False])
def test_no_call_computes_with_weights_alone(uniform, kind, rules, accelerated, monkeypatch):
    """On a GPU with 8-bit products too, as the graph is made for one."""
    for module in (lift, compiler, float8):
        monkeypatch.setattr(module, "runs_on", lambda _: accelerated)
    monkeypatch.setattr(float8, "has_eight_bits", lambda _: accelerated)
    model, x = layers(kind)
    model = model.eval().bfloat16()
    posterior = vp.Posterior.isotropic(model)
    if not uniform:
        var = {name: 1e-4 * (0.5 + torch.rand_like(x)) for name, x in model.named_parameters()}
        posterior = vp.Posterior.from_tensors(dict(model.named_parameters()), var)
    net = vp.propagate(model, posterior, rules)
    graph = net.plan((x.bfloat16(),), {})[0].module.graph
    constant = {node for node in graph.find_nodes(op="get_attr") if not node.target.startswith("scale.")}
    for node in graph.nodes:
        if node.op in ("call_function", "call_module") and constant.issuperset(node.all_input_nodes):
            assert getattr(node.target, "is_view", False), node.format_node()
            constant.add(node)
