"""What capture makes of a model's ops."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import varprop as vp
from tests.models import posterior_of

PAIRS = {
    "expit": (torch.special.expit, torch.sigmoid),
    "arctan": (torch.arctan, torch.atan),
    "arctan2": (lambda x: torch.arctan2(x, x + 2), lambda x: torch.atan2(x, x + 2)),
    "rrelu": (lambda x: F.rrelu(x, 0.1, 0.3), lambda x: F.leaky_relu(x, 0.2)),
    "division": (
        lambda x: torch.div(torch.div(x, 3, rounding_mode=None), 2 + x.exp(), rounding_mode=None),
        lambda x: x / 3 / (2 + x.exp()),
    ),
    "clip": (lambda x: torch.clip(x, -0.1, 0.2), lambda x: torch.clamp(x, -0.1, 0.2)),
}


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.function = nn.Linear(3, 3), function

    def forward(self, x):
        return self.function(self.inner(x))


@pytest.mark.parametrize("name", PAIRS)
def test_another_spelling_is_the_same_function(name):
    x = torch.randn(4, 3)
    models = [Function(function) for function in PAIRS[name]]
    found = [tuple(vp.propagate(model, posterior_of(model, 1e-2))(x)) for model in models]
    torch.testing.assert_close(*found)
    assert (found[0][1] > 0).all()
