"""What the metrics cost: a million examples, ten classes, float32, each metric by itself.

    python benchmarks/metrics.py
    python benchmarks/metrics.py --device cuda

Times include the checks of the input. The classes get the examples in batches of 1,000, as in an evaluation loop, and
their times include the updates. Medians over rounds; the total is the sum of the medians of the plain functions. Bar:
5 seconds in total on a CPU. Writes benchmarks/results/metrics-<device>.json.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from timing import Function, interleaved, options, started, write
from torch import Tensor

from varprop import metrics

BARS = {"cpu": 5.0}
EXAMPLES, CLASSES, BATCH = 1_000_000, 10, 1_000


def data(device: torch.device) -> dict[str, Tensor]:
    """Softmax outputs of a ten-class problem, with labels drawn from them."""
    logits = 2 * torch.randn(EXAMPLES, CLASSES, device=device)
    probs = logits.softmax(1)
    target = torch.multinomial(probs, 1).squeeze(1)
    confidence, answer = probs.max(1)
    multi_hot = (torch.rand_like(probs) < probs).float()
    return {
        "probs": probs,
        "target": target,
        "soft target": (0.5 * logits).softmax(1),
        "multi_hot": multi_hot,
        "confidence": confidence,
        "correctness": (answer == target).float(),
        "matches": torch.randint(0, 11, (EXAMPLES,), device=device),
    }


def functions(x: dict[str, Tensor]) -> dict[str, Function]:
    scored = x["confidence"], x["correctness"]
    return {
        "aurc": lambda: metrics.aurc(*scored),
        "coverage_at_risk": lambda: metrics.coverage_at_risk(*scored, 0.05),
        "effective_reliability": lambda: metrics.effective_reliability(*scored, 10, 0.9),
        "best_threshold": lambda: metrics.best_threshold(*scored, 10),
        "risk_coverage_curve": lambda: metrics.risk_coverage_curve(*scored),
        "ece": lambda: metrics.ece(*scored),
        "ace": lambda: metrics.ace(*scored),
        "accuracy": lambda: metrics.accuracy(x["correctness"]),
        "vqa_accuracy": lambda: metrics.vqa_accuracy(x["matches"]),
        "brier": lambda: metrics.brier(x["probs"], x["target"]),
        "brier, soft target": lambda: metrics.brier(x["probs"], x["soft target"]),
        "nll": lambda: metrics.nll(x["probs"], x["target"]),
        "nll, soft target": lambda: metrics.nll(x["probs"], x["soft target"]),
        "bce": lambda: metrics.bce(x["probs"], x["multi_hot"]),
    }


def classes(x: dict[str, Tensor], device: torch.device) -> dict[str, Function]:
    def streamed(metric: Callable[[], Any], first: str, second: str) -> Function:
        def evaluate() -> Any:
            accumulated = metric().to(device)
            for batch in zip(x[first].split(BATCH), x[second].split(BATCH), strict=True):
                accumulated.update(*batch)
            return accumulated.compute()

        return evaluate

    return {
        "AURC": streamed(metrics.AURC, "confidence", "correctness"),
        "CoverageAtRisk": streamed(lambda: metrics.CoverageAtRisk(0.05), "confidence", "correctness"),
        "EffectiveReliability": streamed(lambda: metrics.EffectiveReliability(10, 0.9), "confidence", "correctness"),
        "ECE": streamed(metrics.ECE, "confidence", "correctness"),
        "ACE": streamed(metrics.ACE, "confidence", "correctness"),
        "Accuracy": streamed(metrics.Accuracy, "confidence", "correctness"),
        "Brier": streamed(metrics.Brier, "probs", "target"),
        "NLL": streamed(metrics.NLL, "probs", "target"),
        "BCE": streamed(metrics.BCE, "probs", "multi_hot"),
    }


def measured(found: dict[str, Function], device: torch.device, rounds: int) -> list[dict[str, Any]]:
    medians = {name: statistics.median(times) for name, times in interleaved(found, device, rounds).items()}
    medians["total"] = sum(medians.values())
    for name, median in medians.items():
        print(f"{name:<24}{median:8.3f} s")
    return [{"name": name, "seconds": median} for name, median in medians.items()]


def main() -> None:
    args = started(options(__doc__, rounds=3, threads=1))
    device = torch.device(args.device)
    x = data(device)
    print(f"{EXAMPLES:,} examples, plain functions, bar {BARS.get(device.type)} s")
    plain = measured(functions(x), device, args.rounds)
    print(f"\nclasses, in batches of {BATCH:,}")
    streamed = measured(classes(x, device), device, args.rounds)
    setting = {"examples": EXAMPLES, "classes": CLASSES, "batch": BATCH, "bar": BARS.get(device.type)}
    write("metrics", args, setting, functions=plain, classes=streamed)


if __name__ == "__main__":
    main()
