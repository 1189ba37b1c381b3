"""Processes of several kinds: in order, a few at a time; what fails is tried again, and what is missing is named."""

import math
import os
import time

import pytest

from experiments import pool
from experiments.pool import Job, Pool

MOST = {"training": 1, "study": 2}


class Stage:
    """A process that ends at once, or never; the codes of all tries are its target."""

    def __init__(self, target, args, name):
        self.codes, self.name, self.exitcode = target, name, None

    def start(self):
        self.exitcode = self.codes.pop(0)

    def terminate(self):
        self.exitcode = -15

    def join(self, _):
        pass


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(pool, "PAUSE", 0)
    monkeypatch.setattr(pool.multiprocessing.get_context("spawn"), "Process", Stage)


def study(name, *codes, after=()):
    return Job(name, "study", [*codes], after=after)


def told(capsys):
    """What was said, without times."""
    return [line.split(" s  ")[-1].split(" after ")[0] for line in capsys.readouterr().out.splitlines()]


def test_in_the_order_given_when_what_comes_before_is_done(at_once, capsys):
    first, second = (Job(name, "training", [0]) for name in ("a trained", "b trained"))
    jobs = [study("b", 0, after=[second]), study("a", 0, after=[first]), first, second]
    assert not Pool(jobs, MOST, math.inf).run()
    assert told(capsys) == ["a trained: done", "a: done", "b trained: done", "b: done"]


def test_what_fails_is_tried_once_more_in_the_end_and_stops_nothing(at_once, capsys):
    bad = study("bad", 1, 1)
    jobs = [study("shaky", 1, 0), bad, study("good", 0), study("late", 0), study("behind", 0, after=[bad])]
    assert [job.name for job in Pool(jobs, MOST, math.inf).run()] == ["bad", "behind"]
    order = ["shaky: failed", "bad: failed", "good: done", "late: done", "shaky: done", "bad: failed twice"]
    assert told(capsys) == [*order, "missing: bad (failed twice)", "missing: behind (not begun)"]


def test_a_few_of_a_kind_at_a_time(at_once):
    jobs = [*(study(str(i), None) for i in range(5)), *(Job(f"t{i}", "training", [None]) for i in range(3))]
    found = Pool(jobs, MOST, time.monotonic() + 0.05).run()
    states = {job.name: job.state for job in found}
    assert [name for name, state in states.items() if state == "stopped"] == ["0", "1", "t0"]
    assert len(states) == 8
    assert set(states.values()) == {"stopped", "not begun"}


@pytest.mark.second
def test_processes_of_their_own():
    """One ends, one fails; one is stopped by the limit."""
    jobs = [Job("ends", "study", time.time), Job("fails", "study", os._exit, (3,))]
    missing = Pool(jobs, MOST, math.inf).run()
    assert {job.name: job.state for job in missing} == {"fails": "failed twice"}
    endless = Job("stays", "study", time.sleep, (60,))
    assert Pool([endless], MOST, time.monotonic() + 0.3).run() == [endless]
    assert endless.code
