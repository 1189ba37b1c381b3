"""Choosing a recipe: candidates trained side by side, compared on held-out data alone."""

from __future__ import annotations

import json
import math
import statistics
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from experiments.data.labelled import majority
from experiments.experiment import NOWHERE, Experiment, Sources
from experiments.faults import ExperimentError
from experiments.loading import PreparedBatches
from experiments.training import Lane, lane, train
from varprop.evaluation.evaluate import evaluate, revision
from varprop.posterior import Posterior
from varprop.prediction.monte_carlo import MonteCarlo
from varprop.prediction.predictors import MeanNetwork

if TYPE_CHECKING:
    from rich.table import Table

SAMPLES = 8  # the paper chose by the held-out AURC of this many


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

    A pipeline in the same folder finds what was trained here. Warns if the best has learned next to nothing.
    """
    pairs = [(name, seed) for seed in seeds for name in experiment.candidates]
    posteriors = _posteriors(experiment, pairs, folder, device, sources, progress=progress)
    trials, guesses = [], []
    for (name, seed), (model, posterior) in zip(pairs, posteriors, strict=True):
        held_out = PreparedBatches(experiment.splits(sources, seed).held_out, experiment.prepare, 500, device)
        guesses.append(majority(held_out.examples.labels))
        mean = evaluate(MeanNetwork(model, posterior, link=experiment.link), held_out, progress=False)
        sampler = MonteCarlo(model, posterior, SAMPLES, link=experiment.link, seed=seed)
        sampled = evaluate(sampler, held_out, progress=False)
        trials.append(Trial(name, seed, dict(mean.metrics), dict(sampled.metrics)))
    recipes = {name: asdict(recipe) for name, recipe in experiment.candidates.items()}
    guess = statistics.fmean(guesses)
    found = {
        "revision": revision(),
        "recipes": recipes,
        "majority": guess,
        "trials": [asdict(trial) for trial in trials],
    }
    (folder / f"{experiment.name}-search.json").write_text(json.dumps(found, indent=1))
    _warn_of_guessing(experiment, trials, guess, len(held_out.examples))
    return trials


def _warn_of_guessing(experiment: Experiment, trials: Sequence[Trial], guess: float, count: int) -> None:
    """One answer for all examples can have the least AURC, where other candidates are wrong more often."""
    name = _chosen(experiment, trials)
    accuracy = statistics.fmean(trial.mean["accuracy"] for trial in trials if trial.candidate == name)
    if accuracy < guess + math.sqrt(guess * (1 - guess) / count):  # a standard error
        warnings.warn(
            f"{experiment.name}: the best candidate, {name!r}, is right on {accuracy:.1%} of the held-out examples; "
            f"the most common answer, given to all of them, is right on {guess:.1%}. Next to nothing was learned, and "
            "no method can be judged by it: try other recipes",
            stacklevel=3,
        )


def _posteriors(
    experiment: Experiment,
    pairs: Sequence[tuple[str, int]],
    folder: Path,
    device: str,
    sources: Sources,
    *,
    progress: bool,
) -> Iterator[tuple[nn.Module, Posterior]]:
    """Of each candidate with each seed, in their order: trained all together, or computed."""
    weights, computed = sources.fingerprint, experiment.posterior
    lanes = [lane(experiment.name, experiment.candidates[name], seed, folder, weights) for name, seed in pairs]

    def start(lane: Lane) -> nn.Module:
        return experiment.model(lane.recipe, sources, lane.seed)

    if computed is not None:
        for each in lanes:
            model = start(each).to(device).eval()
            yield model, computed(model, each.recipe, sources, each.seed)
        return
    try:
        examples = experiment.splits(sources, pairs[0][1]).train
        posteriors = train(lanes, start, examples, experiment.prepare, device, link=experiment.link, progress=progress)
    except torch.OutOfMemoryError as error:
        raise ExperimentError(
            f"{device} has too little memory for {len(lanes)} networks side by side "
            f"({str(error).partition('.')[0]}); give fewer --seeds"
        ) from error
    for each, posterior in zip(lanes, posteriors, strict=True):
        yield start(each).to(device).eval(), posterior


def best(experiment: Experiment, folder: Path) -> Experiment:
    """The experiment with the candidate whose samples had the least AURC in a search that was written there."""
    found = json.loads((folder / f"{experiment.name}-search.json").read_text())
    return replace(experiment, recipe=experiment.candidates[_chosen(experiment, [Trial(**t) for t in found["trials"]])])


def _chosen(experiment: Experiment, trials: Sequence[Trial]) -> str:
    risks = {name: _averages([t for t in trials if t.candidate == name])[-1] for name in experiment.candidates}
    return min(risks, key=risks.__getitem__)


def trial_table(experiment: Experiment, trials: Sequence[Trial]) -> Table:
    """Accuracy and AURC of the mean network and of the samples, averaged over seeds; the best candidate on top."""
    from rich.table import Table  # which a search does without

    table = Table(title="held-out data, mean over seeds", title_justify="left", title_style="bold")
    table.add_column("candidate")
    for kind in ("mean network", f"MC-{SAMPLES}"):
        table.add_column(f"{kind}: accuracy % ↑", justify="right")
        table.add_column(f"{kind}: AURC ×100 ↓", justify="right")
    lines = {name: _averages([t for t in trials if t.candidate == name]) for name in experiment.candidates}
    for name, averages in sorted(lines.items(), key=lambda line: line[1][-1]):
        mark = " (the row's recipe)" if experiment.candidates[name] == experiment.recipe else ""
        table.add_row(f"{name}{mark}", *(f"{100 * average:.2f}" for average in averages))
    return table


def _averages(trials: Sequence[Trial]) -> list[float]:
    found = [[part[key] for part in (t.mean, t.sampled) for key in ("accuracy", "aurc")] for t in trials]
    return [statistics.fmean(column) for column in zip(*found, strict=True)]
