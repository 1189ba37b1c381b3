"""A folder with a model, data and a posterior of one's own, and the command ``varprop``."""

import sys
import textwrap

import pytest
import torch
from torch import nn

from tests.command_line import complaint, runner
from tests.models import posterior_of
from varprop.cli.app import app

MINE = """
import torch
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))

def odd():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)
        def forward(self, x):
            return torch.special.i0(self.linear(x))
    return Odd()

def batches(seed, count):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=rng)
    return [(x, (x[:, 0] + torch.randn(count, generator=rng) > 0).long())]

def held_out():
    return batches(1, 200)

def test():
    yield from batches(2, 100)

def inputs():
    return batches(2, 100)[0][0]

def measured():
    return [(x, x[:, :3] + 0.5 * torch.randn(len(x), 3, generator=torch.Generator().manual_seed(3)))
            for x, _ in batches(1, 200)]

def narrow():
    return [(torch.randn(9, 3), torch.zeros(9).long())]

def nothing():
    return []

def number():
    return 3

constant = 5
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The folder; it is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(textwrap.dedent(MINE))
    torch.manual_seed(0)
    posterior_of(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)), 0.01).save("p.safetensors")
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.fixture
def varprop(capsys, monkeypatch):
    """``varprop(…)`` runs the command."""
    path = list(sys.path)
    yield runner(app, "varprop", capsys, monkeypatch)
    sys.path[:] = path  # the command adds the current folder
    torch.set_num_threads(1)


@pytest.fixture
def refused(varprop):
    return complaint(varprop)
