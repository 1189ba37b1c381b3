"""``varprop``: the commands. Each is a call of the library."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import varprop
from varprop.calibration import calibrate
from varprop.calibration.fixed_epochs import FixedEpochs
from varprop.cli import shell
from varprop.cli.demo import demonstrate
from varprop.cli.references import batches_of, call, device_named, inputs_of, link_of, model_of, numbers, writable
from varprop.cli.screen import show, show_certified, show_points
from varprop.cli.shell import Device, RecipeFile, Seeds
from varprop.deployment import scoring
from varprop.deployment.artifact import open_artifact
from varprop.deployment.exporting import import_optional
from varprop.errors import InputError
from varprop.evaluation.cost import relative_costs
from varprop.evaluation.evaluate import measure
from varprop.evaluation.methods import listed, method_of
from varprop.evaluation.results import Results, read_results
from varprop.network import audit as auditing
from varprop.posterior import Posterior
from varprop.prediction.folder import load
from varprop.prediction.links import Gaussian
from varprop.report import write_report
from varprop.rules import NAMED

app = shell.new_app("Calibrated uncertainty in one forward pass.")

Model = Annotated[str, typer.Option(help="module:function that returns the model.")]
PosteriorFile = Annotated[Path, typer.Option(help="What Posterior.save wrote.")]
OptionalModel = Annotated[
    str | None, typer.Option(help="module:function that returns the model, if it is none of transformers.")
]
Artifact = Annotated[Path, typer.Argument(help="What save_pretrained wrote, or an .onnx file that vp.export wrote.")]
BatchesName = Annotated[str, typer.Option(help="module:function that returns batches (inputs, target).")]
CLASSES, REGRESSION = "mean,temperature,mc-8,streamlining,cvp", "mean,mc-8,cvp-adaptive"
LINK_NAMES = "softmax, sigmoid, mean-field-softmax, probit-sigmoid or gaussian"
LinkName = Annotated[str, typer.Option(help=f"{LINK_NAMES}.")]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"varprop {varprop.__version__}, torch {torch.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version and stop.")
    ] = False,
) -> None:
    """Calibrated uncertainty in one forward pass."""


@app.command(epilog="Example: varprop demo --samples 64")
def demo(
    out: Annotated[Path, typer.Option(help="Results folder.")] = Path("results/demo"),
    seeds: Seeds = "0-4",
    samples: Annotated[int, typer.Option(min=0, help="Also Monte Carlo with so many samples: slower.")] = 0,
    costs: Annotated[bool, typer.Option(help="Also time compiled passes, which takes another minute.")] = False,
) -> None:
    """Train an ordinary network with AdamW, calibrate it with one line, abstain with a guarantee, write a report."""
    started = time.perf_counter()
    console = Console()
    typer.echo("training with AdamW, calibrating with vp.fit, abstaining with a guarantee")
    results = demonstrate(out, numbers(seeds), samples=samples, costs=costs)
    show(results, console)
    show_certified(results, console)
    typer.echo(f"report: {write_report(out)}")
    typer.echo(f"{time.perf_counter() - started:.0f} s")


@app.command(epilog="Example: varprop audit ViTForImageClassification")
def audit(
    model: Annotated[str, typer.Argument(help="A Hugging Face class, or module:function that returns the model.")],
    shape: Annotated[str | None, typer.Option(help="Of the input, batch of 2 or more: 2,3,224,224.")] = None,
    rules: Annotated[str, typer.Option(help="CVP or STREAMLINING.")] = "CVP",
) -> None:
    """Which ops of a model have a rule, and where variance flows. Exit code 1 if a rule is missing."""
    if rules not in NAMED:
        raise InputError(f"there is no rule set {rules!r}; there are {', '.join(NAMED)}")
    network = model_of(model)
    mean = {name: parameter.detach() for name, parameter in network.named_parameters()}
    posterior = Posterior.from_tensors(mean, {name: torch.full_like(w, 1e-6) for name, w in mean.items()})
    args, kwargs = inputs_of(network, shape)
    table = auditing.audit(network, posterior, *args, rules=NAMED[rules], **kwargs)
    typer.echo(table)
    raise typer.Exit(1 if table.missing else 0)


@app.command(epilog="Example: varprop fit --model mine:model --data mine:held_out --out net")
def fit(
    model: Model,
    data: BatchesName,
    out: Annotated[Path, typer.Option(help="Folder to save the predictor in.")],
    posterior: Annotated[
        Path | None, typer.Option(help="What Posterior.save wrote; without one, all weights get the same variance.")
    ] = None,
    link: Annotated[str | None, typer.Option(help=f"{LINK_NAMES}; by default what the targets look like.")] = None,
    output_only: Annotated[bool, typer.Option(help="One scale, at the output, instead of one per layer.")] = False,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="The paper's procedure instead: so many epochs of Adam on the scales.")
    ] = None,
    device: Device = "auto",
    recipe: RecipeFile = None,
) -> None:
    """Make a calibrated predictor of a trained model, with held-out data, and save it."""
    chosen, place = link_of(link) if link else None, device_named(device)
    gaussian = Posterior.load(posterior).to(place) if posterior else None
    network = model_of(model).to(place)
    batches = batches_of(data, network)
    writable(out)
    predictor = calibrate.fit(
        network,
        batches,
        gaussian,
        chosen,
        scales=calibrate.OUTPUT_ONLY if output_only else calibrate.PER_LAYER,
        procedure=calibrate.ADAPTIVE if epochs is None else FixedEpochs(epochs),
    )
    predictor.save_pretrained(out)
    table = Table("module", "α", title=escape(f"scales of {out}"))
    for name, alpha in predictor.net.scales.items():
        table.add_row(escape(name), f"{alpha:.3g}")
    Console().print(table)


@app.command(epilog="Example: varprop predict net --model mine:model --data mine:inputs --out predictions.csv")
def predict(
    folder: Annotated[Path, typer.Argument(help="What fit, or save_pretrained, wrote.")],
    data: Annotated[str, typer.Option(help="module:function that returns inputs, or batches of them.")],
    out: Annotated[Path, typer.Option(help="File for the predictions: .csv or .safetensors.")],
    model: OptionalModel = None,
    device: Device = "auto",
    recipe: RecipeFile = None,
) -> None:
    """Probabilities, labels and confidence, and who abstains, for all of some data."""
    if out.suffix not in (".csv", ".safetensors"):
        raise InputError(f"{out.name} is neither .csv nor .safetensors")
    writable(out.parent)
    predictor = load(folder, model_of(model) if model else None, device=device_named(device))
    found = predictor.predict(call(data, "data"))
    found.save(out)
    typer.echo(f"{len(found):,} predictions: {out}")


@app.command(
    epilog="Example: varprop evaluate --model mine:model --posterior p.safetensors --held-out mine:held_out "
    "--test mine:test --methods mean,temperature,mc-8,cvp --out results/mine"
)
def evaluate(
    model: Model,
    posterior: PosteriorFile,
    held_out: BatchesName,
    test: BatchesName,
    out: Annotated[Path, typer.Option(help="Results folder; rows are added to it.")],
    methods: Annotated[
        str | None, typer.Option(help="Names with commas between.", show_default=f"{CLASSES}; {REGRESSION}")
    ] = None,
    row: Annotated[str, typer.Option(help="Name of the experiment in tables.")] = "mine",
    seed: Annotated[int, typer.Option(help="Of Monte Carlo, and in tables.")] = 0,
    link: LinkName = "softmax",
    device: Device = "auto",
    recipe: RecipeFile = None,
) -> None:
    """Fit every method on held-out data, evaluate it on test data, and print one table."""
    found = link_of(link)
    chosen = listed(methods or (REGRESSION if isinstance(found, Gaussian) else CLASSES))
    results = Results(writable(out))
    _ = results.rows  # refuses a folder that holds something else
    place = device_named(device)
    gaussian, network = Posterior.load(posterior).to(place), model_of(model).to(place)
    fitting, testing = (batches_of(data, network) for data in (held_out, test))
    config = {"model": model, "posterior": str(posterior), "held_out": held_out, "test": test, "link": link}
    for method in chosen:
        predictor = method.build(network, gaussian, fitting, link=found, seed=seed)
        results.add(*measure(predictor, fitting, testing, row=row, method=method.slug, seed=seed, config=config))
    show(results, Console())


@app.command(epilog="Example: varprop bench --model mine:model --posterior p.safetensors --shape 8,3,224,224")
def bench(
    model: Model,
    posterior: PosteriorFile,
    shape: Annotated[str | None, typer.Option(help="Of the input: 8,3,224,224.")] = None,
    methods: Annotated[str, typer.Option(help="Names with commas between.")] = "mean,mc-1,streamlining,cvp",
    device: Device = "auto",
    recipe: RecipeFile = None,
) -> None:
    """What a compiled pass of each method costs, in plain passes and in Monte Carlo samples."""
    chosen = listed(methods)
    place = device_named(device)
    gaussian, network = Posterior.load(posterior).to(place), model_of(model).to(place)
    args, kwargs = inputs_of(network, shape)
    costs = relative_costs(chosen, network, gaussian, *args, **kwargs)
    if not costs:
        raise InputError("there is nothing to compare without a compiler: install one for C++, such as g++")
    table = Table("method", "plain passes", "MC samples")
    for slug, cost in costs.items():
        table.add_row(escape(method_of(slug).title), f"{cost['plain']:.2f}", f"{cost['sample']:.2f}")
    Console().print(table)


@app.command(epilog="Example: varprop report results/digits --risk 0.01")
def report(
    folder: Annotated[Path, typer.Argument(help="A results folder.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the report; default: inside the results folder.")] = None,
    risk: Annotated[
        float | None, typer.Option(help="Fraction of answers that may be wrong: what each method answers within it.")
    ] = None,
) -> None:
    """Tables, figures and one HTML file from the rows in a results folder."""
    if risk is not None:
        show_points(read_results(folder), risk, Console())
    typer.echo(f"report: {write_report(folder, out)}")


@app.command(epilog="Example: varprop score predictor data scores --key id")
def score(
    artifact: Artifact,
    data: Annotated[Path, typer.Argument(help="Parquet, tar or Arrow files, or a folder of them or of images.")],
    out: Annotated[Path, typer.Argument(help="Folder for the scores; what it lacks of an earlier run is added.")],
    key: Annotated[str, typer.Option(help="Columns to copy, with commas between.")] = "",
    column: Annotated[
        str | None, typer.Option(help="What the model reads; default: text, image, or its inputs by name.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="In one file of the scores.")] = 4096,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows in one pass.")] = 64,
    ray: Annotated[int, typer.Option(min=0, help="So many workers of Ray Data instead of this process.")] = 0,
    model: OptionalModel = None,
    device: Device = "auto",
    recipe: RecipeFile = None,
) -> None:
    """Score data of any size, file by file: the same command resumes a run that was stopped."""
    found = scoring.score(
        artifact,
        data,
        out,
        key=[name.strip() for name in key.split(",") if name.strip()],
        column=column,
        rows=rows,
        batch_size=batch_size,
        device=device_named(device),
        build=functools.partial(model_of, model) if model else None,
        engine=scoring.on_ray(ray) if ray else scoring.here,
    )
    if found is not None:
        unread = f", {found.problems:,} of them unreadable" if found.problems else ""
        typer.echo(f"{found.rows:,} rows{unread}: {out}")


@app.command(epilog="Example: varprop serve predictor --port 8000")
def serve(
    artifact: Artifact,
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 is everywhere.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests answered in one pass, at most.")] = 16,
    delay: Annotated[float, typer.Option(min=0, help="Milliseconds to wait for more requests.")] = 5.0,
    megabytes: Annotated[int, typer.Option(min=1, help="Of a request, at most.")] = 16,
    model: OptionalModel = None,
    device: Device = "auto",
    recipe: RecipeFile = None,
) -> None:
    """Answer over HTTP: /predict, /health, /metrics, and a page to try it at /."""
    serving = import_optional("varprop.deployment.serving", "serve")
    settings = serving.Settings(batch_size=batch_size, delay=delay / 1000, bytes=megabytes * 2**20)
    opened = open_artifact(artifact, model=model_of(model) if model else None, device=device_named(device))
    serving.serve(opened, settings, host=host, port=port)


def main() -> None:
    shell.run(app, "varprop")
