"""The commands that run experiments: ``reproduce``, ``demo`` and ``search``."""

from __future__ import annotations

import difflib
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from experiments.experiment import Experiment, Sources
from experiments.layernorm import synthetic
from experiments.pipeline import Pipeline
from experiments.rows import ROWS
from experiments.search import SAMPLES, Trial
from experiments.search import search as try_all
from varprop.cli.commands import report, show, writable
from varprop.cli.references import device_named
from varprop.errors import ExperimentError, InputError
from varprop.evaluation.methods import listed
from varprop.report import Results
from varprop.report.norms import SYNTHETIC

DEMOS = {"digits": "digits", "fashion-mnist": "fashion-mnist", "cifar10": "cifar10-vit"}
FEWEST = 100
"""Of ``--limit``: a tenth is held out, and scales fitted on less say nothing at all."""
SHOWN = 3  # settings that differ, in a note


def row_named(name: str) -> Experiment:
    if name not in ROWS:
        near = difflib.get_close_matches(name, ROWS, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise InputError(f"there is no row {name!r}{meant}; there are {', '.join(ROWS)}")
    return ROWS[name]


def demo_named(name: str) -> Experiment:
    if name not in DEMOS:
        raise InputError(f"there is no data set {name!r} for the demo, only {', '.join(DEMOS)}")
    return row_named(DEMOS[name])


def with_methods(experiment: Experiment, methods: str | None) -> Experiment:
    """Only these methods, if some are given."""
    return experiment if methods is None else replace(experiment, methods=tuple(listed(methods)))


def list_rows(console: Console) -> None:
    for name, experiment in ROWS.items():
        console.print(f"[bold]{name}[/bold]: {experiment.title}, {_in_the_paper(experiment)}", highlight=False)
        console.print(Padding(experiment.about, (0, 0, 0, 4)), highlight=False)
    console.print("\nRun one with python -m experiments reproduce ROW; --help lists the options.", highlight=False)


def _in_the_paper(experiment: Experiment) -> str:
    if experiment.paper is None:
        return "not in the paper"
    return f"a stand-in for the paper's {experiment.paper}" if experiment.stand_in else "a row of the paper"


def reproduce(pipeline: Pipeline, console: Console) -> None:
    """Run what is missing, and the comparison on made-up inputs that belongs to it; then table and report."""
    started = time.perf_counter()
    _run(pipeline, console)
    results = Results(pipeline.folder)
    if not results.norms(SYNTHETIC):
        _say(console, "comparing the rules for LayerNorm on made-up inputs")
        results.add_norms(SYNTHETIC, synthetic())
    _conclude(pipeline.folder, started, console)


def demo(pipeline: Pipeline, console: Console) -> None:
    started = time.perf_counter()
    _run(pipeline, console)
    _conclude(pipeline.folder, started, console)


def _run(pipeline: Pipeline, console: Console) -> None:
    """What is not there yet; what cannot work is refused before anything is written."""
    device_named(pipeline.device)
    if pipeline.limit is not None and pipeline.limit < FEWEST:
        raise InputError(
            f"--limit {pipeline.limit} is too small: a tenth of it is calibrated on, so give at least {FEWEST}"
        )
    console.print(f"[bold]{pipeline.experiment.title}[/bold]", highlight=False)
    for note in _notes(pipeline):
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
    if len(_done(pipeline)) < len(pipeline.seeds):
        pipeline.splits(pipeline.seeds[0])  # missing data is found before a folder is made for it
        writable(pipeline.folder)
    pipeline.say = lambda text: _say(console, text)
    pipeline.run()


def _conclude(folder: Path, started: float, console: Console) -> None:
    """The main table, the report, and how long it took."""
    show(Results(folder), console)
    report(folder, None, console)
    console.print(f"{time.perf_counter() - started:.0f} s", highlight=False)


def _say(console: Console, text: str) -> None:
    console.print(f"  {text}", highlight=False, soft_wrap=True)


# --- what a folder holds already ---------------------------------------------------------------------


def _done(pipeline: Pipeline) -> list[int]:
    """The seeds that lack nothing."""
    return [seed for seed in pipeline.seeds if not pipeline.missing(seed)]


def _notes(pipeline: Pipeline) -> Iterator[str]:
    yield from Results(pipeline.folder).problems
    done = _done(pipeline)
    if len(done) == len(pipeline.seeds):
        return
    if done:
        yield f"{_seeds(done)} {'are' if len(done) > 1 else 'is'} done already"
    yield from _other_settings(pipeline)
    if pipeline.device == "cpu" and pipeline.limit is None and pipeline.experiment.paper is not None:
        yield "on a CPU this takes many hours; --epochs 1 --limit 2000 shows in minutes that all works"


def _other_settings(pipeline: Pipeline) -> Iterator[str]:
    """Rows of this experiment that were made in another way."""
    rows = Results(pipeline.folder).rows
    others = [row for row in rows if row.row == pipeline.experiment.name and row.config != pipeline.config]
    if not others:
        return
    changed = _differences(others[0].config, pipeline.config)
    replaced = sorted({row.seed for row in others if row.seed in pipeline.seeds})
    kept = sorted({row.seed for row in others} - set(replaced))
    if replaced:
        yield (
            f"{pipeline.folder} holds rows of {_seeds(replaced)} with other settings ({changed}): each is replaced "
            "when the new one is there. To keep them, stop now and choose another --out"
        )
    if kept:
        yield (
            f"{pipeline.folder} holds rows of {_seeds(kept)} with other settings ({changed}): the tables will average "
            "them with these. Choose another --out, or run those seeds again too"
        )


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The settings that are not the same, as ``recipe.epochs 100, now 1``."""
    before, after = dict(_flat(old)), dict(_flat(new))
    changed = [name for name in (before | after) if before.get(name) != after.get(name)]
    told = [f"{name} {_shown(before.get(name))}, now {_shown(after.get(name))}" for name in changed[:SHOWN]]
    return "; ".join(told + [f"{len(changed) - SHOWN} more"] * (len(changed) > SHOWN))


def _flat(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)


# --- choosing a recipe -------------------------------------------------------------------------------


def search(
    experiment: Experiment, seeds: list[int], folder: Path, device: str, sources: Sources, console: Console
) -> None:
    """Train all candidates of a row and show how they compare on held-out data; the best is on top."""
    device_named(device)
    if not experiment.candidates:
        some = ", ".join(name for name, row in ROWS.items() if row.candidates) or "none"
        raise InputError(f"{experiment.name} has no candidates to choose from; rows that have: {some}")
    experiment.splits(sources, seeds[0])  # missing data is found before a folder is made for it
    writable(folder)
    many = f"{len(experiment.candidates)} candidates, {_seeds(seeds)}"
    console.print(f"[bold]{experiment.title}[/bold]: {many}", highlight=False)
    try:
        trials = try_all(experiment, seeds, folder, device, sources)
    except torch.OutOfMemoryError as error:
        raise ExperimentError(
            f"{device} has too little memory for {len(experiment.candidates) * len(seeds)} networks side by side "
            f"({str(error).partition('.')[0]}); give fewer --seeds"
        ) from error
    show_trials(experiment, trials, console)


def show_trials(experiment: Experiment, trials: Sequence[Trial], console: Console) -> None:
    table = Table(title="held-out data, mean over seeds", title_justify="left", title_style="bold")
    table.add_column("candidate")
    kinds = ("mean network", f"MC-{SAMPLES}")
    for kind in kinds:
        table.add_column(f"{kind}: accuracy % ↑", justify="right")
        table.add_column(f"{kind}: AURC ×100 ↓", justify="right")
    lines = {name: _averages([t for t in trials if t.candidate == name]) for name in experiment.candidates}
    for name, numbers in sorted(lines.items(), key=lambda line: line[1][-1]):
        mark = " (the row's recipe)" if experiment.candidates[name] == experiment.recipe else ""
        table.add_row(f"{name}{mark}", *(f"{100 * number:.2f}" for number in numbers))
    console.print(table, highlight=False)


def _averages(trials: Sequence[Trial]) -> list[float]:
    """Accuracy and AURC of the mean network, then of the samples."""
    found = [[part[key] for part in (t.mean, t.sampled) for key in ("accuracy", "aurc")] for t in trials]
    return [statistics.fmean(column) for column in zip(*found, strict=True)]
