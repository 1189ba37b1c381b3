"""Normal noise from counted streams.

Each draw has a stream of its own, named by (seed, lane, number of the draw). So two integers in a checkpoint are the
whole state of the noise, the same on every rank, and resuming from rank 0's checkpoint gives each rank its own noise
back. A running generator could do neither: its state differs from rank to rank, and trainers save one rank's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


def stream(seed: int, lane: Iterable[int], draw: int) -> int:
    """The seed of one draw, in 32 bits because torch's CPU generator uses no more.

    The last mixing is a bijection, so the draws of one lane never share a stream.
    """
    start = _mix(seed & _MASK) ^ _mix((seed >> 32) & _MASK)
    for part in lane:
        start = _mix((start + 0x9E3779B9 * (part + 1)) & _MASK)
    return _mix((start + draw) & _MASK)


def _mix(x: int) -> int:
    """The finalizer of MurmurHash3: invertible, and every bit of the input moves half of the output's."""
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _MASK
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _MASK
    return x ^ (x >> 16)


class Noise:
    """Fills vectors with standard normal noise, leaving torch's global generators alone."""

    def __init__(self) -> None:
        self._generators: dict[torch.device, torch.Generator] = {}

    def stream(self, device: torch.device, seed: int) -> Callable[[Tensor], None]:
        """A function that fills one vector after the other from the stream of that seed."""
        generator = self._generators.get(device)
        if generator is None:
            generator = self._generators[device] = torch.Generator(device)
        fresh = True

        def fill(vector: Tensor) -> None:
            nonlocal fresh
            if fresh:  # only now: another stream may have been in use since
                generator.manual_seed(seed)
                fresh = False
            vector.normal_(generator=generator)

        return fill


def fresh_seed() -> int:
    """A seed from torch's global generator, so that ``torch.manual_seed`` decides it."""
    return int(torch.randint(_MASK, ()))
