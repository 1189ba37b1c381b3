"""The commands for predictors at work: ``score`` and ``serve``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from varprop.cli.references import device_named, model_of
from varprop.cli.shell import Device, RecipeFile
from varprop.deployment import scoring
from varprop.deployment.artifact import open_artifact
from varprop.deployment.exporting import import_optional

Artifact = Annotated[Path, typer.Argument(help="What save_pretrained wrote, or an .onnx file that vp.export wrote.")]
Model = Annotated[
    str | None, typer.Option(help="module:function that returns the model, if it is none of transformers.")
]


def score(
    artifact: Artifact,
    data: Annotated[Path, typer.Argument(help="Parquet, tar or Arrow files, or a folder of them or of images.")],
    out: Annotated[Path, typer.Argument(help="Folder for the scores; one that is there is gone on with.")],
    key: Annotated[str, typer.Option(help="Columns to copy, with commas between.")] = "",
    column: Annotated[
        str | None, typer.Option(help="What the model reads; default: text, image, or its inputs by name.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="In one file of the scores.")] = 4096,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows in one pass.")] = 64,
    ray: Annotated[int, typer.Option(min=0, help="So many workers of Ray Data instead of this process.")] = 0,
    model: Model = None,
    device: Device = "auto",
    recipe: RecipeFile = None,
) -> None:
    """Score data of any size, in files that are kept: the same command goes on after whatever stopped it."""
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
        Console().print(f"{found.rows:,} rows{unread}: {out}", highlight=False, markup=False, soft_wrap=True)


def serve(
    artifact: Artifact,
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 is everywhere.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests answered in one pass, at most.")] = 16,
    delay: Annotated[float, typer.Option(min=0, help="Milliseconds to wait for more requests.")] = 5.0,
    megabytes: Annotated[int, typer.Option(min=1, help="Of a request, at most.")] = 16,
    model: Model = None,
    device: Device = "auto",
    recipe: RecipeFile = None,
) -> None:
    """Answer over HTTP: /predict, /health, /metrics, and a page to try it at /."""
    serving = import_optional("varprop.deployment.serving", "serve")
    settings = serving.Settings(batch_size=batch_size, delay=delay / 1000, bytes=megabytes * 2**20)
    opened = open_artifact(artifact, model=model_of(model) if model else None, device=device_named(device))
    serving.serve(opened, settings, host=host, port=port)
