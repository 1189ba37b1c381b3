"""A synthetic results folder that looks like a real one: experiments, seeds, methods, tied confidences."""

import numpy as np
import torch

from varprop.evaluation.evaluate import best_thresholds, risk_curve
from varprop.evaluation.evaluated import Evaluation
from varprop.evaluation.results import Results, Row

# method: sharpness of the ranking, overconfidence, time in passes of one Monte Carlo sample
METHODS = {
    "mean": (1.0, 1.6, 0.7),
    "mc-4": (0.93, 1.25, 4.0),
    "mc-8": (1.04, 1.2, 8.0),
    "streamlining": (1.0, 1.1, 1.6),
    "cvp": (1.3, 1.0, 1.8),
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
    sharpness, overconfidence, _ = METHODS[method]
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
    names = ("confidence", "correctness", "held_out_confidence", "held_out_correctness")
    confidence, correctness, *held_out = (torch.from_numpy(arrays[name]) for name in names)
    # Without probabilities per class, those of being right stand in.
    p = confidence.double().clip(1e-6, 1 - 1e-6)
    nll, brier = -torch.where(correctness > 0, p, 1 - p).log(), 2 * (p - correctness).square()
    found = {"confidence": confidence, "correctness": correctness, "nll": nll, "brier": brier}
    return Evaluation(found, best_thresholds(*held_out)).metrics


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


def make(folder, experiments=("digits",), methods=tuple(METHODS), seeds=5, examples=400, held_out=300, thumbnails=200):
    """Fill a folder and return its Results."""
    results = Results(folder)
    for number, experiment in enumerate(experiments):
        for seed in range(seeds):
            for method in methods:
                rng = np.random.default_rng([number, seed, *method.encode()])
                arrays = scores(number, seed, method, examples, held_out)
                sample = METHODS[method][2]
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
                        scales={path: float(np.exp(rng.normal(0, 0.5))) for path in MODULES}
                        if method == "cvp"
                        else None,
                        fidelity=fidelity(rng, 0.9 if method == "cvp" else 0.3) if propagated else None,
                        config={"epochs": 20, "model": "vit-tiny"},
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
