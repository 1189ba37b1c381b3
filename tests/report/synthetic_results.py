"""A synthetic results folder that looks like a real one: experiments, seeds, methods, tied confidences."""

import numpy as np
import torch

from varprop import metrics
from varprop.evaluation.evaluate import risk_curve
from varprop.evaluation.results import Results, Row

# method: sharpness of the ranking, overconfidence, time in passes of one Monte Carlo sample
METHODS = {
    "mean": (1.0, 1.6, 0.7),
    "temperature": (1.0, 1.0, 0.7),
    "mc-2": (0.8, 1.3, 2.0),
    "mc-4": (1.0, 1.15, 4.0),
    "mc-8": (1.15, 1.1, 8.0),
    "mc-64": (1.3, 1.05, 64.0),
    "streamlining": (1.0, 1.1, 1.6),
    "cvp": (1.3, 1.0, 1.8),
}
# All methods of the paper's tables and its ablation, and all sizes of Monte Carlo.
EVERY = METHODS | {
    f"mc-{size}": (0.6 + 0.11 * size.bit_length(), 1.4 - 0.05 * size.bit_length(), float(size))
    for size in (1, 2, 4, 8, 16, 32, 64)
}
EVERY |= {
    "cvp-minus-norm": (1.1, 1.05, 1.75),
    "cvp-minus-activation": (1.2, 1.1, 1.7),
    "cvp-output-only": (0.95, 1.05, 1.8),
    "cvp-none": (0.95, 1.3, 1.8),
    "streamlining-per-layer": (1.05, 1.1, 1.6),
    "streamlining-none": (1.0, 1.5, 1.6),
}
MODULES = [
    f"blocks.{i}.{name}"
    for i in range(3)
    for name in ("norm", "attention.value", "attention.out", "mlp.up", "mlp.down")
]
MODULES += ["norm", "head"]
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def scores(experiment, seed, method, examples, held_out):
    """Scores of answers whose logit of being right is known, and seen by a method with noise.

    All methods see the same examples, equally hard in one seed. Confidences come in steps of 0.001: some are equal.
    """
    sharpness, overconfidence, _ = EVERY.get(method, (1.0, 1.0, 1.0))
    shared = np.random.default_rng([experiment, seed])
    noise = np.random.default_rng([experiment, seed, *method.encode()])
    shift = shared.normal(0, 0.3) - experiment
    out = {"target": np.random.default_rng(experiment).integers(0, 10, examples)}
    for prefix, size in (("", examples), ("held_out_", held_out)):
        difficulty = shared.normal(4.2 + shift, 2.2, size)
        seen = difficulty + noise.normal(0, 1 / sharpness, size)
        right = shared.random(size) < 1 / (1 + np.exp(-difficulty - 0.1 * noise.normal(sharpness, 1, size)))
        probability = 1 / (1 + np.exp(-overconfidence * seen))
        out[f"{prefix}confidence"] = np.round(0.1 + 0.9 * probability, 3).clip(0, 1).astype(np.float32)
        out[f"{prefix}correctness"] = right.astype(np.float64)
    wrong = (out["target"] + shared.integers(1, 10, examples)) % 10
    out["label"] = np.where(out["correctness"] > 0, out["target"], wrong)
    return out


def measured(arrays):
    confidence, correctness = (torch.from_numpy(arrays[name]) for name in ("confidence", "correctness"))
    held_out = [torch.from_numpy(arrays[f"held_out_{name}"]) for name in ("confidence", "correctness")]
    found = {"accuracy": metrics.accuracy(correctness), "aurc": metrics.aurc(confidence, correctness)}
    for risk in (0.5, 1, 2, 5):
        found[f"c@{risk}"] = metrics.coverage_at_risk(confidence, correctness, risk / 100)
    for cost in (10, 50, 100):
        threshold = metrics.best_threshold(*held_out, cost)
        found[f"phi@{cost}"] = metrics.effective_reliability(confidence, correctness, cost, threshold)
    found |= {"ece": metrics.ece(confidence, correctness), "ace": metrics.ace(confidence, correctness)}
    # Without probabilities per class, those of being right stand in.
    p = confidence.double().clip(1e-6, 1 - 1e-6)
    found["brier"] = 2 * (p - correctness).square().mean()
    found["nll"] = -torch.where(correctness > 0, p, 1 - p).log().mean()
    return {name: float(value) for name, value in found.items()}


def fidelity(rng, quality):
    return [
        {
            "path": path,
            "module": "LayerNorm" if path.endswith("norm") else "Linear",
            "variance_ratio": float(np.exp(rng.normal(-depth * (1 - quality) / 6, 0.05))),
            "correlation": float(rng.uniform(0.9, 1)),
            "mean_error": float(abs(rng.normal(0.02 + 0.01 * depth * (1 - quality), 0.01))),
            "plain_error": float(abs(rng.normal(0.05 + 0.012 * depth, 0.01))),
        }
        for depth, path in enumerate(MODULES)
    ]


def images(rng, examples):
    """Blobs, 8 by 8: something to look at."""
    y, x = np.mgrid[0:8, 0:8]
    at = rng.uniform(2, 6, (examples, 2, 1, 1))
    width = rng.uniform(1, 3, (examples, 1, 1))
    return (255 * np.exp(-((y - at[:, 0]) ** 2 + (x - at[:, 1]) ** 2) / width**2)).astype(np.uint8)


def scales_of(method, rng, paths):
    if method in ("cvp", "streamlining-per-layer"):
        return {path: float(np.exp(rng.normal(0, 0.5))) for path in paths}
    return None


def make(
    folder,
    experiments=("digits",),
    methods=METHODS,
    seeds=5,
    examples=400,
    held_out=300,
    thumbnails=200,
    config=None,
    paths=MODULES,
):
    """Fill a folder and return its Results. ``config`` says more about an experiment: its title, the paper's row."""
    results = Results(folder)
    for number, experiment in enumerate(experiments):
        for seed in range(seeds):
            for method in methods:
                rng = np.random.default_rng([number, seed, *method.encode()])
                arrays = scores(number, seed, method, examples, held_out)
                sample = EVERY.get(method, (1.0, 1.0, 1.0))[2]
                propagated = method in ("cvp", "streamlining")
                time = sample * rng.uniform(0.97, 1.03)
                results.add(
                    Row(
                        row=experiment,
                        method=method,
                        seed=seed,
                        examples=examples,
                        metrics=measured(arrays),
                        cost={"plain": time / 0.7, "sample": time},
                        curve=risk_curve(*(torch.from_numpy(arrays[name]) for name in ("confidence", "correctness"))),
                        scales=scales_of(method, rng, paths),
                        fidelity=fidelity(rng, 0.9 if method == "cvp" else 0.3) if propagated else None,
                        config={"epochs": 20, "model": "vit-tiny"} | (config or {}).get(experiment, {}),
                        versions={"torch": "2.13.0", "varprop": "0.1.0"},
                        revision="0123abc",
                        time="2026-11-15T09:00:00+00:00",
                    ),
                    arrays,
                )
        if thumbnails:
            rng = np.random.default_rng(7)
            results.add_examples(images(rng, thumbnails), NAMES, row=experiment)
    return results
