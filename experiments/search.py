"""Choosing a recipe: candidates trained side by side, compared on held-out data alone."""

from __future__ import annotations

import json
import math
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from experiments.data.examples import PreparedBatches, majority
from experiments.exceptions import ExperimentError
from experiments.experiment import NO_SOURCES, Experiment, Sources
from experiments.pipeline import Pipeline
from experiments.training import train
from varprop.evaluation.evaluate import evaluate, revision
from varprop.prediction.monte_carlo import MonteCarlo
from varprop.prediction.predictors import MeanNetwork

if TYPE_CHECKING:
    from rich.table import Table

SAMPLES = 8  # the paper chose by the held-out AURC of this many
ALIKE = 0.1  # other answers than the most common one, at least, as a share of those that are called for


@dataclass(frozen=True)
class Trial:
    """One candidate with one seed: its held-out metrics as the mean network and with eight samples."""

    candidate: str
    seed: int
    mean: dict[str, float]
    sampled: dict[str, float]
    same: float | None = None
    """The share of held-out examples that the mean network gives its most common answer."""
    constant: bool = False
    """Whether that is nearly all of them, though other answers are called for."""


def search(
    experiment: Experiment,
    seeds: Sequence[int],
    folder: Path,
    device: str,
    sources: Sources = NO_SOURCES,
    *,
    progress: bool = True,
) -> list[Trial]:
    """All candidates with all seeds, together on the device; written to ``<experiment>-search.json`` in the folder.

    A pipeline in the same folder finds what was trained here. Warns of candidates that give nearly all examples one
    answer, which are chosen only if all do, and if the best has learned next to nothing.
    """
    pipelines = {
        name: Pipeline(replace(experiment, recipe=recipe), seeds, folder, device, sources, progress=progress)
        for name, recipe in experiment.candidates.items()
    }
    _train_together(pipelines, seeds)
    trials, guesses = [], []
    for seed in seeds:
        held_out = PreparedBatches(experiment.splits(sources, seed).held_out, experiment.prepare, 500, device)
        guesses.append(majority(held_out.examples.labels))
        for name, pipeline in pipelines.items():
            model, posterior = pipeline.trained(seed)
            mean = evaluate(MeanNetwork(model, posterior, link=experiment.link), held_out, progress=False)
            sampler = MonteCarlo(model, posterior, SAMPLES, link=experiment.link, seed=seed)
            sampled = evaluate(sampler, held_out, progress=False)
            same = mean.label.bincount().max().item() / len(mean)
            alike = 1 - same < ALIKE * (1 - guesses[-1])
            trials.append(Trial(name, seed, dict(mean.metrics), dict(sampled.metrics), same, alike))
    guess = statistics.fmean(guesses)
    found = {
        "revision": revision(),
        "recipes": {name: asdict(recipe) for name, recipe in experiment.candidates.items()},
        "majority": guess,
        "trials": [asdict(trial) for trial in trials],
    }
    (folder / f"{experiment.name}-search.json").write_text(json.dumps(found, indent=1))
    _warn_of_constants(experiment, trials)
    _warn_of_guessing(experiment, trials, guess, len(held_out.examples))
    return trials


def constant(trials: Sequence[Trial]) -> set[str]:
    """Candidates that give nearly all held-out examples one answer, with any seed: the others may be no better."""
    return {trial.candidate for trial in trials if trial.constant}


def _train_together(pipelines: dict[str, Pipeline], seeds: Sequence[int]) -> None:
    """Every candidate with every seed, at once."""
    first = next(iter(pipelines.values()))
    if first.experiment.posterior is not None:
        return
    runs = [pipeline.run_of(seed) for seed in seeds for pipeline in pipelines.values()]
    examples, sources = first.splits(seeds[0]).train, first.sources
    try:
        train(first.experiment, runs, examples, first.device, sources=sources, progress=first.progress)
    except torch.OutOfMemoryError as error:
        raise ExperimentError(
            f"{first.device} has too little memory for {len(runs)} networks side by side "
            f"({str(error).partition('.')[0]}); give fewer --seeds"
        ) from error


def _warn_of_constants(experiment: Experiment, trials: Sequence[Trial]) -> None:
    if not (alike := constant(trials)):
        return
    worst = {name: max(trial.same or 0.0 for trial in trials if trial.candidate == name) for name in sorted(alike)}
    told = ", ".join(f"{name!r} ({share:.1%} of them)" for name, share in worst.items())
    chosen = _chosen(experiment, trials)
    so = "all candidates do: try other recipes" if chosen in alike else f"{chosen!r} is the best of the others"
    warnings.warn(
        f"{experiment.name}: one answer for nearly all held-out examples, with some seed, is given by {told}; {so}",
        stacklevel=3,
    )


def _warn_of_guessing(experiment: Experiment, trials: Sequence[Trial], guess: float, count: int) -> None:
    """A candidate can have the least AURC and be right no more often than the most common answer."""
    name = _chosen(experiment, trials)
    accuracy = statistics.fmean(trial.mean["accuracy"] for trial in trials if trial.candidate == name)
    if accuracy < guess + math.sqrt(guess * (1 - guess) / count):  # a standard error
        warnings.warn(
            f"{experiment.name}: the best candidate, {name!r}, is right on {accuracy:.1%} of the held-out examples; "
            f"the most common answer, given to all of them, is right on {guess:.1%}. Next to nothing was learned, and "
            "no method can be judged by it: try other recipes",
            stacklevel=3,
        )


def best_candidate(experiment: Experiment, folder: Path) -> Experiment:
    """The experiment with the candidate whose samples had the least AURC in a search that was written there."""
    found = json.loads((folder / f"{experiment.name}-search.json").read_text())
    return replace(experiment, recipe=experiment.candidates[_chosen(experiment, [Trial(**t) for t in found["trials"]])])


def _chosen(experiment: Experiment, trials: Sequence[Trial]) -> str:
    """Of those that tell examples apart, if there are any."""
    alike = constant(trials)
    return min(experiment.candidates, key=lambda name: (name in alike, _averages(trials, name)[-1]))


def trial_table(experiment: Experiment, trials: Sequence[Trial]) -> Table:
    """Accuracy and AURC of the mean network and of the samples, averaged over seeds; the best candidate on top."""
    from rich.table import Table  # which a search does without

    table = Table(title="held-out data, mean over seeds", title_justify="left", title_style="bold")
    table.add_column("candidate")
    for kind in ("mean network", f"MC-{SAMPLES}"):
        table.add_column(f"{kind}: accuracy % ↑", justify="right")
        table.add_column(f"{kind}: AURC ×100 ↓", justify="right")
    lines, alike = {name: _averages(trials, name) for name in experiment.candidates}, constant(trials)
    for name, averages in sorted(lines.items(), key=lambda line: (line[0] in alike, line[1][-1])):
        mark = " (the row's recipe)" if experiment.candidates[name] == experiment.recipe else ""
        mark += " (one answer for nearly all)" if name in alike else ""
        table.add_row(f"{name}{mark}", *(f"{100 * average:.2f}" for average in averages))
    return table


def _averages(trials: Sequence[Trial], name: str) -> list[float]:
    """Of one candidate, over seeds."""
    found = [(t.mean, t.sampled) for t in trials if t.candidate == name]
    return [statistics.fmean(pair[i][key] for pair in found) for i in (0, 1) for key in ("accuracy", "aurc")]
