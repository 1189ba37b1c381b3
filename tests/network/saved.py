"""A small network to save, whose settings are not all seen in its tensors."""

import contextlib
import functools

import pytest
import torch
from torch import nn

import varprop as vp
from tests.models import posterior_of
from varprop.network import moment_net


class Net(nn.Module):
    def __init__(self, width=6, heads=2):
        super().__init__()
        self.inner, self.act, self.outer, self.heads = nn.Linear(4, width), nn.GELU(), nn.Linear(width, 3), heads

    def forward(self, x):
        y = self.act(self.inner(x))
        y = y.view(len(x), self.heads, -1).softmax(-1).flatten(1)
        return {"logits": self.outer(y), "y": y}


def uncaptured(var=1e-3, **options):
    """Saving and loading it takes no capture."""
    torch.manual_seed(0)
    model = Net().eval()
    return vp.propagate(model, posterior_of(model, var), **options)


@functools.cache
def captured(**options):
    net = uncaptured(**options)
    net.capture(torch.randn(2, 4))
    return net


@contextlib.contextmanager
def no_capture():
    def refuse(*_, **__):
        raise AssertionError("it is captured")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moment_net, "plan_call", refuse)
        yield
