"""Studies in several processes: all end, or what is left is named."""

import math

import pytest

from experiments import fleet


class Stage:
    """A process that ends with a code, or never."""

    def __init__(self, name, code):
        self.name, self.code, self.exitcode, self.stopped = name, code, None, False

    def start(self):
        self.exitcode = self.code

    def terminate(self):
        self.stopped = True

    def join(self):
        pass


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch):
    monkeypatch.setattr(fleet, "PAUSE", 0)


def test_all_run_a_few_at_a_time(capsys):
    stages = [Stage(str(i), 0) for i in range(5)]
    assert fleet.watch(stages, 2, math.inf) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == list("01234")


def test_one_that_fails_ends_the_whole(capsys):
    stages = [Stage("good", 0), Stage("bad", 1), Stage("slow", None), Stage("late", 0)]
    assert fleet.watch(stages, 3, math.inf) == 3
    assert capsys.readouterr().out.count("not finished") == 3
    assert stages[2].stopped
    assert stages[3].exitcode is None


def test_what_takes_too_long_is_stopped():
    stages = [Stage("slow", None)]
    assert fleet.watch(stages, 1, 0.0) == 1
