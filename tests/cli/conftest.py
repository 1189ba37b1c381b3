"""A folder with a model, data and a posterior of one's own, and the command as the shell sees it."""

import sys
import textwrap
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.models import posterior_of
from varprop.cli import app

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
    """``varprop(…)`` runs the command: exit code, what it printed, what it complained about."""
    monkeypatch.setenv("COLUMNS", "160")
    path = list(sys.path)

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["varprop", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            app.main()
        out, err = capsys.readouterr()
        return SimpleNamespace(code=stop.value.code or 0, out=out, err=err)

    yield run
    sys.path[:] = path  # the command adds the current folder
    torch.set_num_threads(1)


@pytest.fixture
def refused(varprop):
    """The one line a wrong use is answered with."""

    def run(*args):
        found = varprop(*args)
        lines = [line for line in found.err.splitlines() if line.strip()]
        assert found.code == 2, found
        assert "Traceback" not in found.out + found.err
        assert len(lines) == 1, found.err
        assert lines[0].startswith("error: ")
        return lines[0]

    return run
