"""What the benchmarks share: a clock that waits for the device, options, files of results, a synthetic posterior."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import varprop as vp

RESULTS = Path(__file__).parent / "results"
Function = Callable[[], Any]


def options(doc: str | None, *, rounds: int, threads: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--threads", type=int, default=threads, help="of a CPU")
    return parser


def started(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options, with threads and seed set."""
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    return args


def write(name: str, args: argparse.Namespace, setting: Mapping[str, Any], **content: Any) -> None:
    """To ``results/<name>-<device>.json``, with what it was measured with."""
    known = {"device": args.device, "threads": args.threads, "rounds": args.rounds, "torch": torch.__version__}
    known |= {"varprop": vp.__version__, "machine": platform.machine(), **setting}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}-{args.device}.json").write_text(json.dumps({"setting": known, **content}, indent=2) + "\n")


def seconds(function: Function, device: torch.device, repeats: int = 1) -> float:
    """Per call."""
    _wait(device)
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    _wait(device)
    return (time.perf_counter() - start) / repeats


def interleaved(
    functions: Mapping[str, Function], device: torch.device, rounds: int, repeats: int = 1
) -> dict[str, list[float]]:
    """Seconds per call of each, in turns, so that noise hits all alike; a round before them is not counted."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds + 1):
        for name, function in functions.items():
            times[name].append(seconds(function, device, repeats))
    return {name: values[1:] for name, values in times.items()}


def ratio_quartiles(base: list[float], values: list[float]) -> tuple[float, float, float]:
    """Of the ratios of each round."""
    low, middle, high = statistics.quantiles([b / a for a, b in zip(base, values, strict=True)], n=4)
    return low, middle, high


def posterior_of(model: nn.Module, relative_std: float = 0.05) -> vp.Posterior:
    """Speed does not depend on its values."""
    mean = dict(model.named_parameters())
    return vp.Posterior.from_tensors(mean, {k: (relative_std * v.detach()) ** 2 + 1e-8 for k, v in mean.items()})


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
