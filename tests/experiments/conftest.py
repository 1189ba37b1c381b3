import pytest
import torch

from experiments import __main__ as program
from experiments import pipeline
from tests.command_line import complaint, runner


@pytest.fixture
def without_measuring(monkeypatch):
    """Costs, and agreement with 128 sampled networks, take longer than all the rest and are tested by themselves."""
    monkeypatch.setattr(pipeline, "relative_costs", lambda *_, **__: {})
    monkeypatch.setattr(pipeline, "compare", lambda *_, **__: [])


@pytest.fixture
def experiments(capsys, monkeypatch):
    """``experiments(…)`` runs ``python -m experiments``."""
    yield runner(program.app, "python -m experiments", capsys, monkeypatch)
    torch.set_num_threads(1)


@pytest.fixture
def refused(experiments):
    return complaint(experiments)
