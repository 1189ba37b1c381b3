"""What the benchmarks share: a clock that waits for the device, and a synthetic posterior."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import varprop as vp


def seconds(function: Callable[[], Any], device: torch.device, repeats: int = 1) -> float:
    """Per call."""
    _wait(device)
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    _wait(device)
    return (time.perf_counter() - start) / repeats


def posterior_of(model: nn.Module, relative_std: float = 0.05) -> vp.Posterior:
    """Speed does not depend on its values."""
    mean = dict(model.named_parameters())
    return vp.Posterior.from_tensors(mean, {k: (relative_std * v.detach()) ** 2 + 1e-8 for k, v in mean.items()})


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
