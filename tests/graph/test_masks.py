"""Masks that are the same in every call are recognised, and no others."""

import pytest
import torch
from torch import nn

import varprop as vp
from tests.models import posterior_of

aten = torch.ops.aten
ALL = torch.ones(1, 1, 5, 5, dtype=torch.bool)


def positions(x, dim):
    """Of tokens, along a dimension of [batch, head, query, key]."""
    return torch.arange(x.shape[1]).view([-1 if d == dim else 1 for d in range(4)])


# The shape of what is left of a mask, sizes above 1 as "any", and whether it is causal.
NOTHING, FUTURE = (None, False), (None, True)
OF_FIXED_LENGTH = {
    "none hidden": (lambda x: ALL.expand(x.shape[0], -1, -1, -1), NOTHING),
    "made on the way": (lambda x: (torch.arange(5) >= 0)[None, None, None].expand(x.shape[0], -1, 5, 5), NOTHING),
    "zeros": (lambda x: torch.zeros(5, 5), NOTHING),
    "future": (lambda x: ALL.tril().expand(x.shape[0], -1, -1, -1), FUTURE),
    "one hidden": (lambda x: torch.eye(5) == 0, (("any", "any"), False)),
    "past": (lambda x: ALL[0, 0].triu(), (("any", "any"), False)),
    "bias": (lambda x: torch.ones(5, 5).tril(), (("any", "any"), False)),
}
OF_ANY_LENGTH = {
    "of the input": (lambda x: (x[:, :, 0] > -100)[:, None, None, :], (("any", 1, 1, "any"), False)),
    "ones": (lambda x: torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), NOTHING),
    "lower triangle": (lambda x: torch.ones(x.shape[1], x.shape[1]).tril() > 0, (("any", "any"), False)),
    "positions": (lambda x: (positions(x, 2) >= 0).expand(x.shape[0], -1, -1, x.shape[1]), NOTHING),
    "all and all": (lambda x: (positions(x, 2) >= 0) & (positions(x, 3) + 1 > 0), NOTHING),
    "the first hidden": (lambda x: (positions(x, 3) > 0).expand(-1, -1, x.shape[1], -1), ((1, 1, 1, "any"), False)),
    "future": (lambda x: positions(x, 3) <= positions(x, 2), FUTURE),
    "future, from the other side": (lambda x: positions(x, 2) >= positions(x, 3), FUTURE),
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
CASES = [(*OF_FIXED_LENGTH[name], (5, 5)) for name in OF_FIXED_LENGTH]
CASES += [(*OF_ANY_LENGTH[name], (5, 7, 3)) for name in OF_ANY_LENGTH]


class Attention(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.mask, self.value = mask, nn.Linear(4, 4)

    def forward(self, x):
        heads = self.value(x)[:, None]
        return nn.functional.scaled_dot_product_attention(heads, heads, heads, self.mask(x))[:, 0]


@pytest.mark.parametrize(("mask", "expected", "lengths"), CASES, ids=[*OF_FIXED_LENGTH, *OF_ANY_LENGTH])
def test_masks(mask, expected, lengths):
    torch.manual_seed(0)
    model = Attention(mask).eval()
    net = vp.propagate(model, posterior_of(model, 0.1))
    for batch, length in enumerate(lengths, 2):
        x = torch.randn(batch, length, 4)
        x[:, 0] = 0.5  # each query sees a key
        torch.testing.assert_close(net(x).mean, model(x), equal_nan=True)
    (plan,) = net._plans
    (node,) = plan.captured.graph.find_nodes(op="call_function", target=aten.scaled_dot_product_attention.default)
    _, _, _, left, _, causal = (*node.args, None, 0.0, False)[:6]
    shape = None if left is None else tuple(1 if str(size) == "1" else "any" for size in left.meta["val"].shape)
    assert (shape, causal) == expected
