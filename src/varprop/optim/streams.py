"""Normal noise from named streams.

Each draw has a stream of its own, named by (seed, lane, number of the draw). So two integers in a checkpoint are the
whole state of the noise, the same on every rank, and resuming from rank 0's checkpoint gives each rank its own noise
back. A running generator could do neither: its state differs from rank to rank, and trainers save one rank's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

PIECE = 1 << 21  # entries that are drawn together: more would take memory, fewer take more calls


def fill_normal(vector: Tensor, seed: int, lane: Iterable[int], draw: int) -> None:
    """Standard normal noise from the stream of that name; torch's global generators are left alone."""
    name = np.random.SeedSequence(seed, spawn_key=(*lane, draw))
    if vector.device.type == "cpu" and vector.dtype == torch.float32:
        bits = np.random.SFC64(name)
        for piece in vector.split(PIECE):
            fill_float32(piece, bits)
    else:
        generator = torch.Generator(vector.device).manual_seed(int(name.generate_state(1, np.uint64)[0]))
        vector.normal_(generator=generator)


def fill_float32(vector: Tensor, bits: np.random.SFC64) -> None:
    """Box and Muller's √(−2 log u)·(cos 2πv, sin 2πv), from uniform numbers of 23 bits.

    Faster on a CPU than torch's ``normal_`` by a third: that spends its time in the Mersenne twister, with one thread,
    while here the bits come from a lighter generator and the rest from torch's threads.
    """
    half = (vector.numel() + 1) // 2
    words = torch.from_numpy(bits.random_raw(half).view(np.int32))
    # The mantissa of a float between 1 and 2. So 2 − u is never 0, and turning by one more circle changes nothing.
    uniform = words.bitwise_and_(0x007FFFFF).bitwise_or_(0x3F800000).view(torch.float32)
    radius, angle = uniform[:half].neg_().add_(2.0), uniform[half:].mul_(2 * math.pi)
    radius.log_().mul_(-2.0).sqrt_()
    torch.mul(torch.cos(angle), radius, out=vector[:half])
    rest = vector.numel() - half
    torch.mul(angle.sin_()[:rest], radius[:rest], out=vector[half:])


def fresh_seed() -> int:
    """A seed from torch's global generator, so that ``torch.manual_seed`` decides it."""
    return int(torch.randint(0xFFFFFFFF, ()))
