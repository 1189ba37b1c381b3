"""What every calibration procedure is given: held-out data, and what is to be fitted to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from varprop.batch import Batch, read, refuse_nan, repeatable
from varprop.errors import CalibrationError, InputError
from varprop.network.moment_net import MomentNet
from varprop.posterior.names import selects
from varprop.prediction.links import Link
from varprop.prediction.targets import labelled


class HeldOut:
    """Batches that can be gone through several times; none is asked for twice in the first round.

    Of ``classes``, examples without any label are left out.
    """

    def __init__(self, batches: Any, *, classes: bool = True, one: bool = False) -> None:
        self._batches, self._classes, self._one = repeatable(batches), classes, one
        self._begun: Iterator[Batch] | None = read(self._batches, one=one)
        self.first = next(self._begun)

    def __iter__(self) -> Iterator[Batch]:
        begun, self._begun = self._begun, None
        found = read(self._batches, one=self._one) if begun is None else chain([self.first], begun)
        some = False
        for number, batch in enumerate(found, start=1):
            refuse_nan(batch, f"batch {number}")
            if self._classes:
                batch = batch.take(labelled(batch.target).reshape(len(batch), -1).any(1))
            if len(batch):
                some = True
                yield batch
        if not some:
            raise InputError("no held-out example has a label: all are -100")


@dataclass(frozen=True)
class Request:
    """``patterns`` select the scales; what they cannot change is kept, up to ``cache`` bytes."""

    link: Link
    patterns: tuple[str, ...]
    cache: int
    silent: bool | None  # as tqdm's ``disable``
    group: Any = None  # of processes that share the passes

    def selected(self, names: Iterable[str]) -> list[str]:
        """The scales that are fitted."""
        names = list(names)
        chosen = [name for name in names if any(selects(pattern, name) for pattern in self.patterns)]
        if self.patterns and not chosen:
            known = ", ".join(names) or "none: no variance reaches a norm, an activation or the output"
            raise CalibrationError(f"no scale is selected by {', '.join(map(repr, self.patterns))}; there are: {known}")
        return chosen


class Procedure(Protocol):
    """How scales are fitted: ``Adaptive`` or ``FixedEpochs``."""

    def fit(self, net: MomentNet, held_out: HeldOut, request: Request) -> MomentNet:
        """``net``, which is the procedure's own and has captured the first batch, calibrated."""
