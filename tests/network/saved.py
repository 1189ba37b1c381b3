"""A small network to save, whose settings are not all seen in its tensors."""

import contextlib
import functools
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import varprop as vp
from tests.models import posterior_of
from varprop.network import moment_net
from varprop.network.storage import CONFIG, WEIGHTS, digest


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


def edit(folder, change):
    """Change ``config.json``."""
    config = json.loads((folder / CONFIG).read_text())
    change(config)
    (folder / CONFIG).write_text(json.dumps(config))


def rewrite(folder, tensors=None, graphs=""):
    """Other tensors, or other graphs, with a checksum that fits."""
    file = folder / WEIGHTS
    save_file(load_file(file) if tensors is None else tensors, file, {"graphs": graphs})
    edit(folder, lambda config: config.update(weights={"sha256": digest(file), "bytes": file.stat().st_size}))


@contextlib.contextmanager
def no_capture():
    def refuse(*_, **__):
        raise AssertionError("it is captured")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moment_net, "plan_call", refuse)
        yield
