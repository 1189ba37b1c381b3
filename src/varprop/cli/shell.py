"""What every command has in common: options from a YAML file, and errors and warnings of one line."""

from __future__ import annotations

import functools
import sys
import traceback
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml  # type: ignore[import-untyped]
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from varprop import errors

USAGE: type[Exception] = typer.BadParameter.__mro__[1]
"""click's UsageError, which newer versions of typer have a copy of."""
INTERRUPTED = 130
PACKAGE = Path(__file__).parents[1]


def new_app(about: str) -> typer.Typer:
    return typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        help=about,
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


RecipeFile = Annotated[
    Path | None, typer.Option("--recipe", is_eager=True, callback=read_recipe, help="YAML file with these options.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is one.")]
Seeds = Annotated[str, typer.Option(help="One or several: 0, 0-4, 0,3.")]


def _as_flag(value: Any) -> Any:
    """Lists as they are written on the command line, with commas between; other values as text, to be read as flags."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return value if isinstance(value, bool) or value is None else str(value)


def run(app: typer.Typer, name: str) -> None:
    """Errors on purpose are one line and exit code 2; what is finished by then is on disk."""

    @functools.cache  # each warning only once: several methods may have the same to say
    def warn(message: str) -> None:
        tqdm.write(f"warning: {message}", file=sys.stderr)  # on a line above the progress bars

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: warn(str(message))
        try:
            code = app(prog_name=name, standalone_mode=False)
        except USAGE as error:
            _misused(error, name)
        except errors.VarpropError as error:
            _fail(str(error))
        except OSError as error:
            named = f" {error.filename}" if error.filename else ""
            _fail(f"cannot read or write{named}: {error.strerror or error}; choose another place")
        except Exception as error:
            if place := _place(error):  # in code of the user's own
                reason = str(error).strip().partition("\n")[0]
                _fail(f"{type(error).__name__} at {place}: {reason}")
            raise
    if code == INTERRUPTED:
        typer.echo("\nstopped; what was finished is kept, and the same command goes on from there", err=True)
    sys.exit(code)


def _place(error: Exception) -> str:
    """``file.py:88`` of the innermost frame that is in the current folder; nothing if there is none."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno))
    for filename, line in reversed(frames):
        file = Path(filename)
        if file.is_relative_to(Path.cwd()) and not file.is_relative_to(PACKAGE) and "site-packages" not in file.parts:
            return f"{file.relative_to(Path.cwd())}:{line}"
    return ""


def _misused(error: Any, name: str) -> None:
    command = error.ctx.command_path if error.ctx else name
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help itself
        error.show()
        sys.exit(2)
    _fail(f"{error.format_message().rstrip('.')}; see {command} --help")


def _fail(message: str) -> None:
    typer.echo(f"error: {message}", err=True)
    sys.exit(2)
