"""What a step of IVON costs, sampling included: beside AdamW (foreach and fused) and the ivon-opt package, in one run.

    python benchmarks/optimizer.py
    python benchmarks/optimizer.py --device cuda

The parameters are those of the 1.8M vision transformer (width 192, depth 4, MLP ×4); gradients are given, so nothing
but the optimizer is timed: drawing the noise, putting sampled weights in place, restoring the means, the update.
Medians over interleaved rounds; the quartiles are those of the per-round ratios to AdamW (foreach). On a CPU each call
is timed by itself, with caches that others have used, as in training; on a GPU ten calls together, as they queue up in
training. Bars: 3 on a CPU, where drawing the noise alone costs about as much as AdamW, and 1.5 on a GPU. Writes
benchmarks/results/optimizer-<device>.json.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from timing import Function, interleaved, options, ratio_quartiles, seconds, started, write
from torch import Tensor, nn

from varprop.optim import IVON

BARS = {"cpu": 3.0, "cuda": 1.5}
SETTINGS = {"lr": 0.1, "ess": 1e6, "clip_radius": 1e-3}
BASE = "AdamW (foreach)"


def parameters(device: torch.device, width: int = 192, depth: int = 4) -> list[nn.Parameter]:
    """The tensors of a vision transformer for 32×32 images in 4×4 patches, ten classes."""
    block = [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,)]
    block += [(width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    shapes = [(width, 3, 4, 4), (width,), (1, 1, width), (1, 65, width), *depth * block]
    shapes += [(width,), (width,), (10, width), (10,)]
    return [nn.Parameter(0.02 * torch.randn(shape, device=device)) for shape in shapes]


def with_gradients(device: torch.device) -> tuple[list[nn.Parameter], list[Tensor]]:
    params = parameters(device)
    gradients = [1e-3 * torch.randn_like(p) for p in params]
    put(params, gradients)
    return params, gradients


def put(params: list[nn.Parameter], gradients: list[Tensor]) -> None:
    """In place of a backward pass."""
    for p, gradient in zip(params, gradients, strict=True):
        p.grad = gradient


def adamw(device: torch.device, **kind: bool) -> Function:
    params, _ = with_gradients(device)
    return torch.optim.AdamW(params, lr=1e-4, **kind).step


def blocks(optimizer_of: Callable[..., Any], device: torch.device) -> Function:
    params, gradients = with_gradients(device)
    optimizer = optimizer_of(params, **SETTINGS)

    def step() -> None:
        with optimizer.sampled_params(train=True):
            put(params, gradients)
        optimizer.step()

    return step


def plain_loop(device: torch.device) -> Function:
    params, gradients = with_gradients(device)
    optimizer = IVON(params, **SETTINGS)
    optimizer.zero_grad()

    def step() -> None:
        optimizer.train()
        put(params, gradients)
        optimizer.step()
        optimizer.zero_grad()

    return step


def noise(device: torch.device) -> Function:
    flat = torch.empty(sum(p.numel() for p in parameters(device)), device=device)
    return flat.normal_


def contestants(device: torch.device) -> dict[str, Function]:
    found = {
        BASE: adamw(device, foreach=True),
        "AdamW (fused)": adamw(device, fused=True),
        "varprop IVON, blocks": blocks(IVON, device),
        "varprop IVON, plain loop": plain_loop(device),
    }
    try:
        import ivon
    except ImportError:
        print("ivon-opt is not installed: left out")
    else:
        found["ivon-opt"] = blocks(ivon.IVON, device)
    return found | {"torch's normal_ alone": noise(device)}


def main() -> None:
    args = started(options(__doc__, rounds=41, threads=2))
    device = torch.device(args.device)
    functions = contestants(device)
    for function in functions.values():
        seconds(function, device, 3)
    times = interleaved(functions, device, args.rounds, repeats=1 if device.type == "cpu" else 10)
    medians = {name: statistics.median(values) for name, values in times.items()}
    rows = []
    for name, values in times.items():
        low, _, high = ratio_quartiles(times[BASE], values)
        row = {"name": name, "milliseconds": 1e3 * medians[name], "ratio": medians[name] / medians[BASE]}
        row |= {"ratio_quartiles": [low, high], "bar": BARS.get(device.type) if "IVON" in name else None}
        rows.append(row)
        bar = f", bar {row['bar']}" if row["bar"] else ""
        print(f"{name:<26}{row['milliseconds']:8.3f} ms  {row['ratio']:5.2f}x (quartiles {low:.2f}-{high:.2f}{bar})")
    count = sum(p.numel() for p in parameters(device))
    write("optimizer", args, {"parameters": count}, rows=rows)


if __name__ == "__main__":
    main()
