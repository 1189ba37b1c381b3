"""What is asked of a calibration, whatever its procedure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from varprop.calibration.held_out import HeldOut
from varprop.errors import CalibrationError
from varprop.network.moment_net import MomentNet
from varprop.posterior.names import selects
from varprop.prediction.links import Link


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
