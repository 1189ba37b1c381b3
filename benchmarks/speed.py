"""What propagation costs: the compiled network of moments beside the compiled plain model, in one run.

    python benchmarks/speed.py                      # both models, float32, batch 8
    python benchmarks/speed.py --models vit-b --device cuda --dtype bfloat16 --batch 128

Ratios of medians over interleaved rounds, with the quartiles of the per-round ratios. "Plain" is the fastest of the
model as its library wrote it, compiled or not, and of the same model captured as a flat graph and compiled: compiling
can make a model slower, and beating that would prove nothing. Bars are those of float32 at batch 8 on two
CPU cores. Writes benchmarks/results/<name>.json.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timing import posterior_of, seconds
from torch import Tensor, nn
from transformers import ResNetConfig, ResNetForImageClassification, ViTConfig, ViTForImageClassification

import varprop as vp

RESULTS = Path(__file__).parent / "results"
MODELS: dict[str, Callable[[], nn.Module]] = {
    "vit-b": lambda: ViTForImageClassification(ViTConfig(num_labels=1000)),
    "resnet-50": lambda: ResNetForImageClassification(ResNetConfig(num_labels=1000)),
}
BARS = {"vit-b": 3.2, "resnet-50": 4.5}


def compare(functions: dict[str, Callable[[], Any]], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Times of each function, taken in turns so that noise hits all alike."""
    for function in functions.values():
        for _ in range(2):
            function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            times[name].append(seconds(function, device))
    return times


def parameter_bytes(module: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    model = MODELS[name]().eval().to(device, dtype)
    pixels: Tensor = torch.randn(args.batch, 3, 224, 224, device=device, dtype=dtype)
    net = vp.propagate(model, posterior_of(model))
    capture = seconds(lambda: net.capture(pixels), device)
    certain = vp.propagate(model, vp.Posterior.from_tensors({}, {}))
    certain.capture(pixels)
    plain, flat, lifted = (
        torch.compile(model),
        torch.compile(certain, fullgraph=True),
        torch.compile(net, fullgraph=True),
    )
    with torch.no_grad():
        deviation = (lifted(pixels).var - net(pixels).var).abs().max() / net(pixels).var.abs().max()
        calls = {"plain": plain, "plain, flat": flat, "plain, eager": model}
        calls |= {"propagated": lifted, "propagated, eager": net}
        times = compare({key: functools.partial(call, pixels) for key, call in calls.items()}, args.rounds, device)
    medians = {key: statistics.median(values) for key, values in times.items()}
    fastest = min((key for key in medians if key.startswith("plain")), key=lambda key: medians[key])
    ratios = [b / a for a, b in zip(times[fastest], times["propagated"], strict=True)]
    quartiles = statistics.quantiles(ratios, n=4)
    return {
        "model": name,
        "ratio": medians["propagated"] / medians[fastest],
        "denominator": fastest,
        "ratio_eager": medians["propagated, eager"] / medians[fastest],
        "ratio_to_the_model_as_written": medians["propagated"] / medians["plain"],
        "ratio_quartiles": [quartiles[0], quartiles[2]],
        "bar": BARS[name],
        "seconds": medians,
        "capture_seconds": capture,
        "parameter_memory_ratio": parameter_bytes(net) / parameter_bytes(model),
        "compiled_against_eager": float(deviation),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float64"])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = []
    for name in args.models:
        row = measure(name, args)
        rows.append(row)
        low, high = row["ratio_quartiles"]
        print(
            f"{name}: {row['ratio']:.2f}x {row['denominator']}, not compiled {row['ratio_eager']:.2f}x "
            f"(quartiles {low:.2f}-{high:.2f}, bar {row['bar']}), "
            f"capture {row['capture_seconds']:.1f} s, parameters {row['parameter_memory_ratio']:.2f}x, "
            f"compiled against eager {row['compiled_against_eager']:.1e}",
            flush=True,
        )
    RESULTS.mkdir(exist_ok=True)
    where = RESULTS / f"speed-{args.device}-{args.dtype}-batch{args.batch}.json"
    setting = {"device": args.device, "dtype": args.dtype, "batch": args.batch, "threads": args.threads}
    setting |= {"torch": torch.__version__, "varprop": vp.__version__, "machine": platform.machine()}
    setting["hardware"] = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor()
    where.write_text(json.dumps({"setting": setting, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
