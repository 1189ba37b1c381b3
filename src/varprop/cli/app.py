"""``varprop``: the commands, their options, and what becomes of errors."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml  # type: ignore[import-untyped]
from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from varprop import errors
from varprop.cli import commands
from varprop.evaluation.methods import title

USAGE: type[Exception] = typer.BadParameter.__mro__[1]
"""click's UsageError, which newer versions of typer have a copy of."""
INTERRUPTED = 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="Calibrated uncertainty in one forward pass.",
    pretty_exceptions_enable=False,
)


def read_recipe(context: typer.Context, path: Path | None) -> Path | None:
    """Values of a YAML file become the defaults of the command's options; flags win."""
    if path is None:
        return None
    try:
        found = yaml.safe_load(path.read_text())
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} is not YAML: {str(error).splitlines()[0]}") from None
    known = {parameter.name for parameter in context.command.params}
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{path} holds no options, such as 'epochs: 5'")
    values = {str(key).replace("-", "_"): _as_flag(value) for key, value in found.items()}
    unknown = sorted(set(values) - known)
    if unknown:
        options = ", ".join(sorted(name for name in known if name and name != "recipe"))
        raise typer.BadParameter(f"{path} has unknown options: {', '.join(unknown)}; there are {options}")
    context.default_map = {**(context.default_map or {}), **values}
    return path


def _as_flag(value: Any) -> Any:
    """Lists as they are written on the command line, with commas between; other values as text, to be read as flags."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return value if isinstance(value, bool) or value is None else str(value)


Model = Annotated[str, typer.Option(help="module:function that returns the model.")]
PosteriorFile = Annotated[Path, typer.Option(help="What Posterior.save wrote.")]
Batches = Annotated[str, typer.Option(help="module:function that returns batches (inputs, target).")]
LinkName = Annotated[str, typer.Option(help="softmax, sigmoid, mean-field-softmax or probit-sigmoid.")]
RecipeFile = Annotated[
    Path | None, typer.Option("--recipe", is_eager=True, callback=read_recipe, help="YAML file with these options.")
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; by default what torch finds best.")]


@app.command(epilog="Example: varprop coverage ViTForImageClassification")
def coverage(
    model: Annotated[str, typer.Argument(help="A Hugging Face class, or module:function that returns the model.")],
    shape: Annotated[str | None, typer.Option(help="Of the input, batch of 2 or more: 2,3,224,224.")] = None,
    rules: Annotated[str, typer.Option(help="CVP or STREAMLINING.")] = "CVP",
) -> None:
    """Which ops of a model have a rule, and where variance flows. Exit code 1 if a rule is missing."""
    table = commands.coverage(model, shape, rules)
    typer.echo(table)
    raise typer.Exit(1 if table.missing else 0)


@app.command(
    epilog="Example: varprop calibrate --model mine:model --posterior p.safetensors --data mine:held_out --out net"
)
def calibrate(
    model: Model,
    posterior: PosteriorFile,
    data: Batches,
    out: Annotated[Path, typer.Option(help="Folder to save the calibrated network in.")],
    link: LinkName = "softmax",
    output_only: Annotated[bool, typer.Option(help="One scale, at the output, instead of one per layer.")] = False,
    epochs: Annotated[int, typer.Option(min=1)] = 10,
    lr: Annotated[float, typer.Option(min=0)] = 0.03,
    batch_size: Annotated[int, typer.Option(min=1)] = 256,
    device: Device = "cpu",
    recipe: RecipeFile = None,
) -> None:
    """Fit variance scales on held-out data and save the network."""
    net = commands.calibrate(
        model, posterior, data, out, link, device, output_only=output_only, epochs=epochs, lr=lr, batch_size=batch_size
    )
    table = Table("module", "α", title=f"scales of {out}")
    for name, alpha in net.scales.items():
        table.add_row(name, f"{alpha:.3g}")
    Console().print(table)


@app.command(
    epilog="Example: varprop evaluate --model mine:model --posterior p.safetensors --held-out mine:held_out "
    "--test mine:test --methods mean,temperature,mc-8,cvp --out results/mine"
)
def evaluate(
    model: Model,
    posterior: PosteriorFile,
    held_out: Batches,
    test: Batches,
    out: Annotated[Path, typer.Option(help="Results folder; rows are added to it.")],
    methods: Annotated[str, typer.Option(help="Names with commas between.")] = "mean,temperature,mc-8,streamlining,cvp",
    row: Annotated[str, typer.Option(help="Name of the experiment in tables.")] = "mine",
    seed: Annotated[int, typer.Option(help="Of Monte Carlo, and in tables.")] = 0,
    link: LinkName = "softmax",
    device: Device = "cpu",
    recipe: RecipeFile = None,
) -> None:
    """Fit every method on held-out data, evaluate it on test data, and print one table."""
    results = commands.evaluate(model, posterior, held_out, test, out, methods, row, seed, link, device)
    commands.show(results, Console())


@app.command(epilog="Example: varprop bench --model mine:model --posterior p.safetensors --shape 8,3,224,224")
def bench(
    model: Model,
    posterior: PosteriorFile,
    shape: Annotated[str | None, typer.Option(help="Of the input: 8,3,224,224.")] = None,
    methods: Annotated[str, typer.Option(help="Names with commas between.")] = "mean,mc-1,streamlining,cvp",
    device: Device = "cpu",
    recipe: RecipeFile = None,
) -> None:
    """What a compiled pass of each method costs, in plain passes and in Monte Carlo samples."""
    costs = commands.bench(model, posterior, shape, methods, device)
    table = Table("method", "plain passes", "MC samples")
    for slug, cost in costs.items():
        table.add_row(title(slug), f"{cost['plain']:.2f}", f"{cost['sample']:.2f}")
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
    commands.report(folder, out, Console(), risk)


def main(app: typer.Typer = app) -> None:
    """Errors on purpose are one line and exit code 2; what is finished by then is on disk."""
    with warnings.catch_warnings():
        warnings.showwarning = _Warnings()  # type: ignore[assignment]
        try:
            code = app(standalone_mode=False)
        except USAGE as error:
            _misused(error)
        except errors.VarpropError as error:
            _fail(str(error))
        except OSError as error:
            named = f" {error.filename}" if error.filename else ""
            _fail(f"cannot read or write{named}: {error.strerror or error}; choose another place")
    if code == INTERRUPTED:
        typer.echo("\nstopped; what was finished is kept, and the same command goes on from there", err=True)
    sys.exit(code)


def _misused(error: Any) -> None:
    command = error.ctx.command_path if error.ctx else "varprop"
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help itself
        error.show()
        sys.exit(2)
    _fail(f"{error.format_message().rstrip('.')}; see {command} --help")


def _fail(message: str) -> None:
    typer.echo(f"error: {message}", err=True)
    sys.exit(2)


class _Warnings:
    """Each on a line above the progress bars, and only once: several methods may have the same to say."""

    def __init__(self) -> None:
        self.told: set[str] = set()

    def __call__(self, message: Warning | str, *_: Any) -> None:
        if str(message) not in self.told:
            self.told.add(str(message))
            tqdm.write(f"warning: {message}", file=sys.stderr)
