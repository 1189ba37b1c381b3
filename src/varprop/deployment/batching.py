"""Requests that come at about the same time, answered in one pass."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from varprop.deployment.preprocessing import Answer, Example
from varprop.errors import VarpropError

Waiting = tuple[Example, "asyncio.Future[Answer]"]


class OverloadError(VarpropError, RuntimeError):
    """As many requests wait as may."""


class Batcher:
    """``await batcher.answer(example)``: up to ``size`` examples make a pass, and none waits longer than ``delay``.

    ``answers`` makes a pass. Delays are in seconds, and count from when the pass before has ended. At most ``waiting``
    examples wait. ``observe`` is told the size of every batch.
    """

    def __init__(
        self,
        answers: Callable[[Sequence[Example]], list[Answer]],
        size: int,
        delay: float,
        waiting: int,
        observe: Callable[[int], None],
    ) -> None:
        self.answers, self.size, self.delay, self.observe = answers, size, delay, observe
        self.queue: asyncio.Queue[Waiting] = asyncio.Queue(waiting)
        self._pass = ThreadPoolExecutor(1, "pass")
        self._work: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._work = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """After what is waiting has been answered."""
        if self._work is not None and self.is_alive:
            await self.queue.join()
            self._work.cancel()
        self._pass.shutdown()

    @property
    def is_alive(self) -> bool:
        return self._work is not None and not self._work.done()

    async def answer(self, example: Example) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        try:
            self.queue.put_nowait((example, future))
        except asyncio.QueueFull:
            raise OverloadError(f"{self.queue.maxsize} requests are waiting: try again later") from None
        return await future

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = await self._next_batch()
            wanted = [(example, future) for example, future in batch if not future.done()]  # who left needs no answer
            if wanted:
                self.observe(len(wanted))
                found = await loop.run_in_executor(self._pass, self._answers, [example for example, _ in wanted])
                for (_, future), result in zip(wanted, found, strict=True):
                    if future.done():
                        continue
                    if isinstance(result, Exception):
                        future.set_exception(result)
                    else:
                        future.set_result(result)
            for _ in batch:
                self.queue.task_done()

    async def _next_batch(self) -> list[Waiting]:
        batch = [await self.queue.get()]
        try:
            async with asyncio.timeout(self.delay):
                while len(batch) < self.size:
                    batch.append(self.queue.get_nowait() if not self.queue.empty() else await self.queue.get())
        except TimeoutError:
            pass
        return batch

    def _answers(self, examples: Sequence[Example]) -> list[Answer | Exception]:
        try:
            return [*self.answers(examples)]
        except Exception as error:  # whatever a model may raise: the others are not to suffer for it
            if len(examples) > 1:
                return [self._answers([example])[0] for example in examples]
            logging.getLogger(__name__).exception("a pass failed")
            return [error]
