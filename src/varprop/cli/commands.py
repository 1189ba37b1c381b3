"""What the commands do."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from varprop.calibration.scales import OUTPUT_ONLY, PER_LAYER
from varprop.calibration.scales import calibrate as fit
from varprop.cli.points import show_points
from varprop.cli.references import batches_of, device_named, inputs_of, link_of, model_of, tried
from varprop.errors import InputError
from varprop.evaluation.cost import Cost, relative_costs
from varprop.evaluation.measure import measure
from varprop.evaluation.methods import listed
from varprop.network.coverage import Coverage
from varprop.network.coverage import coverage as cover
from varprop.network.moment_net import MomentNet, propagate
from varprop.posterior import Posterior
from varprop.prediction.predictors import Propagated
from varprop.report import Results, Summary, read_results, tables, write_report
from varprop.rules import NAMED

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
SHOWN = ("accuracy", "aurc", "c@1", "ece", "nll", "cost.plain")


def numbers(text: str) -> list[int]:
    """``0``, ``0-4`` or ``0,3``."""
    found: list[int] = []
    for part in text.split(","):
        matched = _RANGE.fullmatch(part.strip())
        first, last = (int(matched[1]), int(matched[2] or matched[1])) if matched else (1, 0)
        if last < first:
            raise InputError(f"seeds are numbers or ranges, such as 0, 0-4 or 0,3, not {text!r}")
        found += range(first, last + 1)
    return found


def writable(folder: Path) -> Path:
    """The folder, made if need be: one that cannot be written to is refused before the work, not after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}; choose another folder") from None
    if not os.access(folder, os.W_OK):
        raise InputError(f"no permission to write to {folder}; choose another folder")
    return folder


def coverage(reference: str, shape: str | None, rules: str) -> Coverage:
    if rules not in NAMED:
        raise InputError(f"there is no rule set {rules!r}; there are {', '.join(NAMED)}")
    model = model_of(reference)
    mean = {name: parameter.detach() for name, parameter in model.named_parameters()}
    posterior = Posterior.from_tensors(mean, {name: torch.full_like(w, 1e-6) for name, w in mean.items()})
    args, kwargs = inputs_of(model, shape)
    tried(model, args, kwargs)
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
    gaussian = Posterior.load(posterior).to(device_named(device))
    model = model_of(reference).to(device)
    batches = batches_of(data, model)
    writable(out)
    net = propagate(model, gaussian)
    net = fit(net, batches, link=chosen, scales=OUTPUT_ONLY if output_only else PER_LAYER, **settings)
    Propagated(net, link=chosen).save_pretrained(out)
    return net


def evaluate(
    reference: str,
    posterior: Path,
    held_out: str,
    test: str,
    out: Path,
    methods: str,
    row: str,
    seed: int,
    link: str,
    device: str,
) -> Results:
    compared = listed(methods)
    chosen = link_of(link)
    results = Results(writable(out))
    _ = results.rows  # refuses a folder that holds something else
    gaussian = Posterior.load(posterior).to(device_named(device))
    model = model_of(reference).to(device)
    fitting, testing = (batches_of(data, model) for data in (held_out, test))
    config = {"model": reference, "posterior": str(posterior), "held_out": held_out, "test": test, "link": link}
    for method in compared:
        predictor = method.build(model, gaussian, fitting, link=chosen, seed=seed)
        results.add(*measure(predictor, fitting, testing, row=row, method=method.slug, seed=seed, config=config))
    return results


def bench(reference: str, posterior: Path, shape: str | None, methods: str, device: str) -> dict[str, Cost]:
    compared = listed(methods)
    gaussian = Posterior.load(posterior).to(device_named(device))
    model = model_of(reference).to(device)
    args, kwargs = inputs_of(model, shape)
    moved = tuple(x.to(device) for x in args), {name: x.to(device) for name, x in kwargs.items()}
    tried(model, *moved)
    costs = relative_costs(compared, model, gaussian, *moved[0], **moved[1])
    if not costs:
        raise InputError("there is nothing to compare without a compiler: install one for C++, such as g++")
    return costs


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


def report(folder: Path, out: Path | None, console: Console, risk: float | None = None) -> None:
    if risk is not None:
        show_points(read_results(folder), risk, console)
    path = write_report(folder, out)
    console.print(f"report: {path}", highlight=False, soft_wrap=True)
