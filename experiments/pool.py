"""Processes of several kinds, so many of a kind at a time, in the order given."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

PAUSE = 0.2  # seconds between looks at the processes
GRACE = 5.0  # seconds that one may take to stop


@dataclass(eq=False)
class Job:
    """What a process of its own is to do, when all that it comes after is done."""

    name: str
    kind: str
    target: Callable[..., None]
    args: tuple[Any, ...] = ()
    after: Sequence[Job] = ()
    state: str = "not begun"
    process: BaseProcess | None = None
    begun: float = 0.0

    @property
    def ready(self) -> bool:
        return all(job.state == "done" for job in self.after)

    @property
    def code(self) -> int | None:
        """With which its process has ended."""
        return None if self.process is None else self.process.exitcode


class Pool:
    """Runs jobs until ``until`` by ``time.monotonic()``. What fails goes to the end of the queue, once."""

    def __init__(self, jobs: Sequence[Job], most: Mapping[str, int], until: float) -> None:
        self.waiting, self.running, self.most, self.until = [*jobs], list[Job](), most, until
        self.started = time.monotonic()

    def run(self) -> list[Job]:
        """Those that are not done in the end, each of which is named."""
        missing: list[Job] = []
        try:
            while time.monotonic() < self.until and (self.running or any(self._startable())):
                missing += self._gather()
                while job := next(self._startable(), None):
                    self._start(job)
                time.sleep(PAUSE)
            missing += self._gather()
        finally:
            self._stop()
        missing += self.running + self.waiting
        for job in missing:
            _say(f"missing: {job.name} ({job.state})")
        return missing

    def _startable(self) -> Iterator[Job]:
        kinds = [job.kind for job in self.running]
        return (job for job in self.waiting if job.ready and kinds.count(job.kind) < self.most[job.kind])

    def _start(self, job: Job) -> None:
        self.waiting.remove(job)
        self.running.append(job)
        job.begun = time.monotonic()
        spawn = multiprocessing.get_context("spawn")
        job.process = spawn.Process(target=job.target, args=job.args, name=job.name)
        job.process.start()

    def _gather(self) -> list[Job]:
        """Those that have failed for good."""
        ended = [(job, code) for job in self.running if (code := job.code) is not None]
        for job, code in ended:
            self.running.remove(job)
            again = code != 0 and job.state == "not begun"
            job.state = "done" if code == 0 else "failed" if again else "failed twice"
            now = time.monotonic()
            _say(f"{now - self.started:7.1f} s  {job.name}: {job.state} after {now - job.begun:.1f} s")
            if again:
                self.waiting.append(job)
        return [job for job, _ in ended if job.state == "failed twice"]

    def _stop(self) -> None:
        processes = [job.process for job in self.running if job.process]
        for job in self.running:
            job.state = "stopped"
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(GRACE)
            if process.exitcode is None:
                process.kill()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
