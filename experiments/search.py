"""Choosing a recipe: candidates trained side by side, compared on held-out data alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from experiments.experiment import NOWHERE, Experiment, Sources
from experiments.loading import Batches
from experiments.training import Lane, lane, train
from varprop.evaluation.evaluate import evaluate
from varprop.evaluation.measure import revision
from varprop.posterior import Posterior
from varprop.prediction.predictors import MeanNetwork, MonteCarlo

SAMPLES = 8  # the paper chose by the held-out AURC of so many


@dataclass(frozen=True)
class Trial:
    """One candidate with one seed: its held-out metrics as the mean network and with eight samples."""

    candidate: str
    seed: int
    mean: dict[str, float]
    sampled: dict[str, float]


def search(
    experiment: Experiment,
    seeds: Sequence[int],
    folder: Path,
    device: str,
    sources: Sources = NOWHERE,
    *,
    progress: bool = True,
) -> list[Trial]:
    """All candidates with all seeds, together on the device; written to ``<experiment>-search.json`` in the folder.

    A pipeline in the same folder finds what was trained here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pairs = [(name, seed) for seed in seeds for name in experiment.candidates]
    weights = sources.fingerprint
    lanes = [lane(experiment.name, experiment.candidates[name], seed, folder, weights) for name, seed in pairs]
    splits = experiment.splits(sources, 0)

    def start(lane: Lane) -> Any:
        return experiment.model(lane.recipe, sources, lane.seed)

    posteriors = train(lanes, start, splits.train, experiment.prepare, device, progress=progress)
    held_out = Batches(splits.held_out, experiment.prepare, 500, device)
    trials = []
    for (name, seed), each, posterior in zip(pairs, lanes, posteriors, strict=True):
        model = start(each).to(device).eval()
        trials.append(judge(name, seed, model, posterior, held_out))
    write(experiment, trials, folder)
    return trials


def judge(candidate: str, seed: int, model: nn.Module, posterior: Posterior, held_out: Batches) -> Trial:
    mean = evaluate(MeanNetwork(model, posterior), held_out, progress=False)
    sampled = evaluate(MonteCarlo(model, posterior, SAMPLES, seed=seed), held_out, progress=False)
    return Trial(candidate, seed, dict(mean.metrics), dict(sampled.metrics))


def write(experiment: Experiment, trials: Sequence[Trial], folder: Path) -> None:
    """With the recipes that were tried, to ``<experiment>-search.json``."""
    recipes = {name: asdict(recipe) for name, recipe in experiment.candidates.items()}
    found = {"revision": revision(), "recipes": recipes, "trials": [asdict(trial) for trial in trials]}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{experiment.name}-search.json").write_text(json.dumps(found, indent=1))
