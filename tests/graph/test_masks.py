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


def positions(x, dim):
    """Of tokens, along a dimension of [batch, head, query, key]."""
    return torch.arange(x.shape[1]).view([-1 if d == dim else 1 for d in range(4)])


WRITTEN = {
    "none hidden": (lambda x: (positions(x, 2) >= 0).expand(x.shape[0], -1, -1, x.shape[1]), (None, False)),
    "all and all": (lambda x: (positions(x, 2) >= 0) & (positions(x, 3) + 1 > 0), (None, False)),
    "the first hidden": (lambda x: (positions(x, 3) > 0).expand(-1, -1, x.shape[1], -1), ((1, 1, 1, "any"), False)),
    "future": (lambda x: positions(x, 3) <= positions(x, 2), (None, True)),
    "future, from the other side": (lambda x: positions(x, 2) >= positions(x, 3), (None, True)),
    "past": (lambda x: positions(x, 3) >= positions(x, 2), ((1, 1, "any", "any"), False)),
    "all but the next": (lambda x: positions(x, 3) <= positions(x, 2) + 1, ((1, 1, "any", "any"), False)),
    "of the caller": (
        lambda x: (positions(x, 2) >= 0) & (x[:, :, 0] > -1)[:, None, None],
        (("any", 1, 1, "any"), False),
    ),
    "of the caller and the future": (
        lambda x: (positions(x, 3) <= positions(x, 2)) & (x[:, :, 0] > -1)[:, None, None],
        (("any", 1, "any", "any"), False),
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_masks_of_a_length(name):
    mask, (shape, causal) = WRITTEN[name]
    torch.manual_seed(0)
    model = Attention(mask).eval()
    net = vp.propagate(model, posterior_of(model, 0.1))
    for sizes in ((2, 5), (3, 7), (2, 3)):
        x = torch.randn(*sizes, 4)
        x[:, 0] = 0.5  # each query sees a key
        torch.testing.assert_close(net(x).mean, model(x), equal_nan=True)
    (plan,) = net._plans
    (node,) = plan.captured.graph.find_nodes(op="call_function", target=aten.scaled_dot_product_attention.default)
    found = node.args[3] if len(node.args) > 3 else None
    assert (len(node.args) > 5 and node.args[5]) is causal
    assert (found is None) == (shape is None)
    if shape is not None:
        assert [str(size) == "1" for size in found.meta["val"].shape] == [size == 1 for size in shape]
