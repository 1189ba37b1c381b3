"""How near rules for LayerNorm come to sampling: numbers over all activations, and some of them to draw."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from varprop.errors import ResultsError

SYNTHETIC = "synthetic"
"""The name under which a folder keeps what was computed from made-up inputs."""
QUANTITIES = ("mean", "var")
MOST = 2000
"""Points that are kept."""


@dataclass(frozen=True)
class Norms:
    """One comparison: rules against sampling, through LayerNorms with the same inputs."""

    title: str
    samples: int
    activations: int
    """How many the errors are taken over."""
    rmse: Mapping[str, Mapping[str, float]]
    """By rule, of ``mean`` and ``var``."""
    points: Mapping[str, np.ndarray]
    """``mean`` and ``var`` of some activations [N, 1 + rules]: as sampled, then as each rule of ``rmse`` has them."""

    def __post_init__(self) -> None:
        for name in QUANTITIES:
            found = self.points.get(name)
            if found is None or found.ndim != 2 or not 0 < len(found) <= MOST or found.shape[1] != 1 + len(self.rmse):
                shape = "nothing" if found is None else list(found.shape)
                wanted = f"[at most {MOST}, {1 + len(self.rmse)}]"
                raise ResultsError(f"the points of {self.title!r} must be {wanted} for {name}, not {shape}")
            if not np.isfinite(found).all():
                raise ResultsError(f"the points of {self.title!r} must be finite for {name}")


def pack(found: Sequence[Norms]) -> dict[str, np.ndarray]:
    """Arrays for one file; the words and single numbers are JSON."""
    facts = [
        {
            "title": n.title,
            "samples": n.samples,
            "activations": n.activations,
            "rmse": {k: dict(v) for k, v in n.rmse.items()},
        }
        for n in found
    ]
    arrays = {f"{name}-{i}": n.points[name].astype(np.float32) for i, n in enumerate(found) for name in QUANTITIES}
    return {"facts": np.array(json.dumps(facts)), **arrays}


def unpack(arrays: Mapping[str, np.ndarray], where: str) -> tuple[Norms, ...]:
    try:
        facts = json.loads(str(arrays["facts"]))
        return tuple(
            Norms(points={name: arrays[f"{name}-{i}"] for name in QUANTITIES}, **fact) for i, fact in enumerate(facts)
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ResultsError(f"{where} holds no comparison of norms ({error}); run what it held again") from None
