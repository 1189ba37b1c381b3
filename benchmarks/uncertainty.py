"""What calibration and the link cost, beside the plain model in one run.

    python benchmarks/uncertainty.py
    python benchmarks/uncertainty.py --device cuda

Calibration: one epoch of ``vp.calibrate`` on the 1.8M vision transformer (width 192, depth 4, 32×32 images), against
forward and backward of the plain model's training over the same data in the same batches; rules are compiled before the
clock starts, and the time that takes is given too. Bars: 4 for time, 3 for peak memory at batch 256.
Link: softmax over 3,129 answers averaged over 256 points, beside a compiled forward pass of the plain ViT-B/16 at the
same batch. Bar: 10 %. Medians over interleaved rounds. Writes benchmarks/results/uncertainty-<device>.json.
"""

from __future__ import annotations

import gc
import itertools
import statistics
from dataclasses import replace
from typing import Any

import torch
from timing import Function, interleaved, options, posterior_of, ratio_quartiles, started, write
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

import varprop as vp
from varprop.batch import read
from varprop.calibration import fixed_epochs
from varprop.calibration.procedure import Request

EPOCH_BAR, MEMORY_BAR = 4.0, 3.0
LINK_BARS = {1000: 0.05, 50_000: 0.10}  # by classes


def peak_memory(function: Function, device: torch.device) -> int:
    """Bytes the function needs beyond what is there before."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        function()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(changes))


def calibration(device: torch.device, batch: int, batches: int, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=3,
        intermediate_size=768,
        image_size=32,
        patch_size=4,
        num_labels=10,
    )
    model = ViTForImageClassification(config).eval().to(device)
    net = vp.propagate(model, posterior_of(model))
    data = [
        (torch.randn(batch, 3, 32, 32, device=device), torch.randint(0, 10, (batch,), device=device))
        for _ in range(batches)
    ]
    net.capture(data[0][0])

    def plain_step(x: Tensor, y: Tensor) -> None:
        model.zero_grad()
        nn.functional.cross_entropy(model(x).logits, y).backward()

    def plain_epoch() -> None:
        for x, y in data:
            plain_step(x, y)

    request = Request(vp.links.Softmax(), vp.PER_LAYER, 1 << 30, silent=True)
    fit = fixed_epochs._Fit(net, request, 0.03)
    shown = fixed_epochs.tqdm(disable=True)

    taken_apart = list(read(data))

    def epoch() -> None:
        fit.epoch(taken_apart, batch, batch, shown)

    epoch()
    result = {"parameters": sum(p.numel() for p in model.parameters()), "batch": batch, "examples": batch * batches}
    memory = [peak_memory(lambda: plain_step(*data[0]), device)]
    single = fixed_epochs._Fit(net, replace(request, cache=0), 0.03)
    single.epoch(taken_apart[:1], batch, batch, shown)
    memory.append(peak_memory(lambda: single.epoch(taken_apart[:1], batch, batch, shown), device))
    epoch()  # on a CPU, enough to have the rules compiled
    times = interleaved({"plain": plain_epoch, "calibration": epoch}, device, rounds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    low, _, high = ratio_quartiles(times["plain"], times["calibration"])
    return result | {
        "ratio": medians["calibration"] / medians["plain"],
        "ratio_quartiles": [low, high],
        "bar": EPOCH_BAR,
        "seconds": medians,
        "memory_ratio": memory[1] / memory[0],
        "memory_bar": MEMORY_BAR,
        "plain_memory_bytes": memory[0],
    }


@torch.no_grad()
def link(device: torch.device, batch: int, rounds: int, classes: int) -> dict[str, Any]:
    pixels = torch.randn(batch, 3, 224, 224, device=device)
    model = ViTForImageClassification(ViTConfig(num_labels=1000)).eval().to(device)
    logits = vp.Moments(torch.randn(batch, classes, device=device), torch.rand(batch, classes, device=device))
    softmax, sigmoid = vp.links.Softmax(256), vp.links.Sigmoid()
    compiled = torch.compile(model)
    functions: dict[str, Function] = {
        "plain forward": lambda: compiled(pixels),
        "softmax, 256 points": lambda: softmax(logits),
        "sigmoid": lambda: sigmoid(logits),
    }
    medians = {name: statistics.median(times) for name, times in interleaved(functions, device, rounds).items()}
    share = {name: medians[name] / medians["plain forward"] for name in ("softmax, 256 points", "sigmoid")}
    return {"batch": batch, "share_of_a_forward": share, "bar": LINK_BARS[classes], "seconds": medians}


def main() -> None:
    parser = options(__doc__, rounds=5, threads=2)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--link-batch", type=int, default=8)
    args = started(parser)
    device = torch.device(args.device)
    fitted = calibration(device, args.batch, args.batches, args.rounds)
    low, high = fitted["ratio_quartiles"]
    print(
        f"calibration epoch {fitted['ratio']:.2f}x a training epoch (quartiles {low:.2f}-{high:.2f}, bar {EPOCH_BAR})"
    )
    print(f"  peak memory {fitted['memory_ratio']:.2f}x a training step (bar {MEMORY_BAR})")
    linked = {classes: link(device, args.link_batch, args.rounds, classes) for classes in LINK_BARS}
    for classes, found in linked.items():
        for name, share in found["share_of_a_forward"].items():
            print(f"link, {name}, {classes} classes: {share:.2%} of a ViT-B forward (bar {found['bar']:.0%})")
    write("uncertainty", args, {}, calibration=fitted, link=linked)


if __name__ == "__main__":
    main()
