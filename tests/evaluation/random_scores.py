"""Scores with many ties, of a predictor that is right as often as it says."""

import numpy as np


def random_scores(seed, size=120, soft=False):
    rng = np.random.default_rng(seed)
    levels = (0, 0.3, 0.6, 0.9, 1) if soft else (0, 1)
    out = {}
    for prefix, length in (("", size), ("held_out_", size - 20)):
        confidence = rng.integers(1, 20, length) / 20  # many ties
        out[f"{prefix}confidence"] = confidence.astype(np.float32)
        right = rng.random(length) < confidence
        out[f"{prefix}correctness"] = np.where(right, rng.choice(levels[1:], length), 0.0)
    return out
