"""``python -m experiments``: the paper's rows and what stands in for them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from experiments import app as experiments
from experiments.experiment import Sources
from experiments.pipeline import Pipeline
from varprop.cli import commands
from varprop.cli.app import Device, RecipeFile, Threads, main

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="Reproduce the paper's experiments.",
    pretty_exceptions_enable=False,
)

Row = Annotated[str, typer.Argument(help="Name of the experiment; reproduce lists them.", show_default=False)]
Seeds = Annotated[str, typer.Option(help="One or several: 0, 0-4, 0,3.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Training epochs, instead of the recipe's.")]
DataFolder = Annotated[Path | None, typer.Option(help="Where the data set lies; digits come with scikit-learn.")]
Weights = Annotated[Path | None, typer.Option(help="File or folder of trained weights, for rows that start from some.")]


@app.command(epilog="Example: python -m experiments demo --data fashion-mnist --seeds 0-4")
def demo(
    data: Annotated[str, typer.Option(help="digits, fashion-mnist or cifar10.")] = "digits",
    data_dir: DataFolder = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the results; default: results/<data>.")] = None,
    seeds: Seeds = "0",
    epochs: Epochs = None,
    device: Device = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads; small networks only wait for more than one.")] = 1,
    recipe: RecipeFile = None,
) -> None:
    """Train with IVON, propagate, calibrate, compare all methods, and write a report."""
    torch.set_num_threads(threads)
    experiment = experiments.demo_named(data)
    folder = out or Path("results") / data
    pipeline = Pipeline(experiment, commands.numbers(seeds), folder, device, Sources(data_dir), epochs)
    experiments.demo(pipeline, Console())


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
    epochs: Epochs = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Training examples at most; a tenth of it is held out and tested.")
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
    console = Console()
    if row is None:
        experiments.list_rows(console)
        return
    experiment = experiments.with_methods(experiments.row_named(row), methods)
    if threads is not None:
        torch.set_num_threads(threads)
    trial = epochs is not None or limit is not None
    folder = out or Path("results") / (f"{row}-trial" if trial else row)
    pipeline = Pipeline(
        experiment, commands.numbers(seeds), folder, device, Sources(data_dir, weights), epochs, limit, side_by_side
    )
    experiments.reproduce(pipeline, console)


@app.command(epilog="Example: python -m experiments search cifar10-vit --seeds 0,1 --device cuda")
def search(
    row: Row,
    seeds: Seeds = "0",
    device: Device = "cpu",
    data_dir: DataFolder = None,
    weights: Weights = None,
    out: Annotated[Path | None, typer.Option(help="Folder; default: results/<row>, as for reproduce.")] = None,
    threads: Threads = None,
    recipe: RecipeFile = None,
) -> None:
    """Train every recipe a row was chosen from, and compare them on held-out data alone."""
    experiment = experiments.row_named(row)
    if threads is not None:
        torch.set_num_threads(threads)
    folder = out or Path("results") / row
    sources = Sources(data_dir, weights)
    experiments.search(experiment, commands.numbers(seeds), folder, device, sources, Console())


if __name__ == "__main__":
    main(app)
