"""What the commands do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from varprop.calibrate.scales import OUTPUT_ONLY, PER_LAYER
from varprop.calibrate.scales import calibrate as fit
from varprop.cli.references import call, inputs_of, link_of, model_of
from varprop.cost import Cost, relative_costs
from varprop.data import load
from varprop.demo.pipeline import Pipeline
from varprop.demo.recipes import RECIPES
from varprop.errors import InputError
from varprop.measure import measure
from varprop.methods import build, named
from varprop.posterior import Posterior
from varprop.predict.batches import repeatable
from varprop.predict.predictors import Propagated
from varprop.propagate.coverage import Coverage
from varprop.propagate.coverage import coverage as cover
from varprop.propagate.network import MomentNet, propagate
from varprop.report import Results, Summary, read_results, tables, write_report
from varprop.rules import NAMED

SHOWN = ("accuracy", "aurc", "c@1", "ece", "nll", "cost.plain")


def numbers(text: str) -> list[int]:
    """``0``, ``0-4`` or ``0,3``."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit() or int(last or first) < int(first):
            raise InputError(f"seeds are numbers or ranges, such as 0, 0-4 or 0,3, not {text!r}")
        found += range(int(first), int(last or first) + 1)
    return found


def demo(
    name: str, data_dir: Path | None, out: Path, seeds: list[int], epochs: int | None, device: str, console: Console
) -> None:
    images = load(name, data_dir)
    recipe = RECIPES[name] if epochs is None else replace(RECIPES[name], epochs=epochs)
    started = time.perf_counter()
    for seed in seeds:
        console.print(f"[bold]{name}, seed {seed}[/bold]")
        Pipeline(images, recipe, seed, out, device, say=lambda text: console.print(f"  {text}", highlight=False)).run()
    results = read_results(out)
    show(results, console)
    report(out, None, console)
    console.print(f"{time.perf_counter() - started:.0f} s", highlight=False)


def coverage(reference: str, shape: str | None, rules: str) -> Coverage:
    if rules not in NAMED:
        raise InputError(f"there is no rule set {rules!r}; there are {', '.join(NAMED)}")
    model = model_of(reference)
    mean = {name: parameter.detach() for name, parameter in model.named_parameters()}
    posterior = Posterior.from_tensors(mean, {name: torch.full_like(w, 1e-6) for name, w in mean.items()})
    args, kwargs = inputs_of(model, shape)
    return cover(model, posterior, *args, rules=NAMED[rules], **kwargs)


def calibrate(
    reference: str,
    posterior: Path,
    data: str,
    out: Path,
    link: str,
    device: str,
    *,
    output_only: bool,
    **settings: Any,
) -> MomentNet:
    chosen = link_of(link)
    model = model_of(reference).to(device)
    net = propagate(model, Posterior.load(posterior).to(device))
    net = fit(net, call(data, "data"), link=chosen, scales=OUTPUT_ONLY if output_only else PER_LAYER, **settings)
    Propagated(net, link=chosen).save_pretrained(out)
    return net


def evaluate(
    reference: str,
    posterior: Path,
    held_out: str,
    test: str,
    out: Path,
    methods: Sequence[str],
    row: str,
    seed: int,
    link: str,
    device: str,
) -> Results:
    names = [named(method.strip()) for method in methods]
    chosen = link_of(link)
    results = Results(out)
    model, gaussian = model_of(reference).to(device), Posterior.load(posterior).to(device)
    fitting, testing = (repeatable(call(data, "data")) for data in (held_out, test))
    config = {"model": reference, "posterior": str(posterior), "held_out": held_out, "test": test, "link": link}
    for name in names:
        predictor = build(name, model, gaussian, fitting, link=chosen, seed=seed)
        results.add(*measure(predictor, fitting, testing, row=row, method=name, seed=seed, config=config))
    return results


def bench(reference: str, posterior: Path, shape: str | None, methods: Sequence[str], device: str) -> dict[str, Cost]:
    model = model_of(reference).to(device)
    args, kwargs = inputs_of(model, shape)
    gaussian = Posterior.load(posterior).to(device)
    names = [method.strip() for method in methods]
    moved = {name: x.to(device) for name, x in kwargs.items()}
    return relative_costs(names, model, gaussian, *(x.to(device) for x in args), **moved)


def show(results: Results, console: Console) -> None:
    """The main columns of every experiment; the report has them all."""
    summary = Summary(results.rows)
    for experiment in summary.experiments:
        columns = [column for column in summary.columns if column.key in SHOWN]
        table = tables.results(summary, experiment, columns)
        shown = Table(title=table.title, title_justify="left", title_style="bold")
        shown.add_column("method", no_wrap=True)
        for column in columns:
            shown.add_column(f"{tables.heading(column, columns)} {column.arrow}", justify="right")
        for name, cells in table.lines:
            shown.add_row(name, *(f"[bold]{cell.text}[/bold]" if cell.best else cell.text for cell in cells))
        console.print(shown)


def report(folder: Path, out: Path | None, console: Console) -> None:
    path = write_report(folder, out)
    console.print(f"report: {path}", highlight=False, soft_wrap=True)
