"""What experiments have in common that start from weights trained elsewhere."""

from __future__ import annotations

from pathlib import Path

from experiments.experiment import Sources
from experiments.faults import ExperimentError
from experiments.recipes import Recipe

NO_TRAINING = Recipe(epochs=0, batch=0, ivon={})
"""Of experiments whose posterior is read or computed."""


def weights_of(sources: Sources, experiment: str, wanted: str) -> Path:
    """The given file or folder, which must be there."""
    if sources.weights is None:
        raise ExperimentError(f"{experiment} starts from trained weights and was given none: {wanted}, with --weights")
    path = sources.weights.expanduser()
    if not path.exists():
        raise ExperimentError(f"the weights of {experiment} are not at {path}: {wanted}, with --weights")
    return path
