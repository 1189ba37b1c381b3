"""Whether Triton runs here, and launching what it compiles; anything else is left to the reference, and said once."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from varprop.kernels.codegen import BLOCK, WARPS, build

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ACCELERATORS = ("cuda", "xpu")
CHANNELS_LAST = {4: [torch.channels_last], 5: [torch.channels_last_3d]}  # by dimensions
FEW = 2048  # rows: fewer than a GPU takes at once
LONGEST_ROW = 1 << 14  # that a program holds
OLDEST = (7, 5)  # CUDA's compute capability that Triton still compiles for

logger = logging.getLogger("varprop")

Results = TypeVar("Results")


@functools.cache
def runs_on(device: torch.device) -> bool:
    """Is there Triton, and a device it compiles for? ``TRITON_INTERPRET=1`` runs kernels on a CPU, for debugging."""
    installed = importlib.util.find_spec("triton") is not None
    if device.type not in ACCELERATORS:
        return installed and device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if not installed:
        say("Triton is not installed: activations, norms and attention run op by op, several times slower")
        return False
    if device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) < OLDEST:
        say(f"{torch.cuda.get_device_name(device)} is too old for Triton: rules run op by op, several times slower")
        return False
    return True


@functools.cache
def say(text: str) -> None:
    """Once in a process."""
    logger.warning(text)


class Launcher:
    """An emitted kernel, compiled when it is first asked for; None where the reference must do."""

    def __init__(self, source: Callable[[], str]) -> None:
        self._source, self._lock = source, threading.Lock()
        self._kernel: Any = None
        self._fails = False

    def __call__(self, inputs: tuple[Tensor, ...], log_alpha: Tensor) -> tuple[Tensor, Tensor] | None:
        """Of tensors of one shape, entry by entry."""
        first = inputs[0]
        if not first.numel() or not usable(*inputs):
            return None
        given = aligned(*inputs)
        results = torch.empty_like(given[0]), torch.empty_like(given[1])
        grid = (-(-first.numel() // BLOCK),)
        arguments = *given, log_alpha, *results, first.numel()
        return self.launch(grid, arguments, results, BLOCK=BLOCK, num_warps=WARPS)

    def launch(self, grid: tuple[int], arguments: tuple[Any, ...], results: Results, **options: int) -> Results | None:
        if self._fails:
            return None
        device = next(x.device for x in arguments if isinstance(x, Tensor))

        def run() -> Results:
            with on(device):
                self.kernel[grid](*arguments, **options)
            return results

        done = attempt("a pointwise rule", run)
        self._fails = done is None
        return done

    @property
    def kernel(self) -> Any:
        with self._lock:
            if self._kernel is None:
                self._kernel = build(self._source())
        return self._kernel


def attempt(name: str, launch: Callable[[], Results]) -> Results | None:
    """The results of a kernel; None, and said once, where Triton cannot compile or launch it."""
    try:
        return launch()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 (a compiler that fails: slower, but not wrong)
        say(f"{name} has no Triton kernel here and runs op by op, several times slower: {error!r}"[:300])
        return None


def usable(*tensors: Tensor) -> bool:
    """Can a Triton kernel take these?"""
    return runs_on(tensors[0].device) and all(x.dtype in DTYPES for x in tensors)


def on(device: torch.device) -> Any:
    """Triton launches on the current device."""
    if device.type == "cpu":
        return contextlib.nullcontext()
    return torch.accelerator.device_index(device.index)


def at_least_16(n: int) -> int:
    """A power of two, as tiles of a kernel are."""
    return max(16, 1 << (n - 1).bit_length())


def tile(tokens: int, usual: tuple[int, int, int]) -> tuple[int, int, int]:
    """Rows and columns of a program, and warps: as usual, or a long row for each where there are few."""
    return (1, 1024, 4) if tokens <= FEW else usual


def aligned(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors of one shape that lie in memory alike and without gaps: as most of them do, or else the first."""
    chosen, most = torch.contiguous_format, -1
    for layout in (torch.contiguous_format, *CHANNELS_LAST.get(tensors[0].ndim, [])):
        like = [x.is_contiguous(memory_format=layout) for x in tensors]
        votes = 2 * sum(like) + like[0]  # a number: compilers do not follow max(…, key=…)
        if votes > most:
            chosen, most = layout, votes
    return tuple(x.contiguous(memory_format=chosen) for x in tensors)


def flat(x: Tensor) -> Tensor:
    """The entries in the order of memory, of a tensor without gaps."""
    return x.as_strided((x.numel(),), (1,), x.storage_offset())
