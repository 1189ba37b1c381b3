"""Masks that are the same in every call are recognised, and no others."""

import pytest
import torch
from torch import nn

import varprop as vp
from tests.models import posterior_of

aten = torch.ops.aten
ALL = torch.ones(1, 1, 5, 5, dtype=torch.bool)
MASKS = {
    "none hidden": (lambda x: ALL.expand(x.shape[0], -1, -1, -1), False),
    "made on the way": (lambda x: (torch.arange(5) >= 0)[None, None, None].expand(x.shape[0], -1, 5, 5), False),
    "zeros": (lambda x: torch.zeros(5, 5), False),
    "future": (lambda x: ALL.tril().expand(x.shape[0], -1, -1, -1), True),
    "one hidden": (lambda x: torch.eye(5) == 0, None),
    "past": (lambda x: ALL[0, 0].triu(), None),
    "bias": (lambda x: torch.ones(5, 5).tril(), None),
    "of the input": (lambda x: (x[:, :, 0] > -100)[:, None, None, :], None),
    "of a length": (lambda x: torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), None),
}


class Attention(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.mask, self.value = mask, nn.Linear(4, 4)

    def forward(self, x):
        heads = self.value(x)[:, None]
        return nn.functional.scaled_dot_product_attention(heads, heads, heads, self.mask(x))[:, 0]


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    mask, causal = MASKS[name]
    torch.manual_seed(0)
    model = Attention(mask).eval()
    net = vp.propagate(model, posterior_of(model, 0.1))
    for batch in (2, 3):
        x = torch.randn(batch, 5, 4)
        torch.testing.assert_close(net(x).mean, model(x))
    (plan,) = net._plans
    (node,) = plan.captured.graph.find_nodes(op="call_function", target=aten.scaled_dot_product_attention.default)
    kept = len(node.args) > 3 and node.args[3] is not None
    if causal is None:
        assert kept or name == "of a length"  # where the length is fixed, so is the mask
    else:
        assert not kept
        assert node.args[5] is causal


def test_a_mask_of_a_length_holds_for_every_length():
    model = Attention(lambda x: torch.ones(x.shape[1], x.shape[1]).tril() > 0).eval()
    net = vp.propagate(model, posterior_of(model, 0.1))
    for length in (5, 1, 7):
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(net(x).mean, model(x))
