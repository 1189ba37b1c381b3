"""From a results folder to a report: figures, tables and the HTML file, all written to one folder."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from varprop.errors import ResultsError
from varprop.evaluation.results import read_results
from varprop.report import tables
from varprop.report.figures import Drawing
from varprop.report.page import render
from varprop.report.sections import SECTIONS, Maker
from varprop.report.style import drawing_style
from varprop.report.summary import Summary


def write(folder: str | os.PathLike[str], out: str | os.PathLike[str] | None, sections: Sequence[Maker] | None) -> Path:
    """What ``varprop.report.write_report`` does."""
    results = read_results(folder)
    target = results.folder / "report" if out is None else Path(out)
    target = target if target.suffix == ".html" else target / "report.html"
    summary = Summary(results.rows)
    with drawing_style():
        made = [section for maker in sections or SECTIONS if (section := maker(results, summary)) is not None]
        text = render(summary, made)
        parts = [part for section in made for part in section.parts]
        try:
            for name in ("figures", "tables"):
                (target.parent / name).mkdir(parents=True, exist_ok=True)
            for drawing in (drawing for part in parts for drawing in part.drawings):
                _save(drawing, target.parent / "figures")
            tables.write([table for part in parts for table in part.tables], target.parent / "tables")
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ResultsError(f"cannot write {target}: {error.strerror or error}; choose another folder") from error
    return target


def _save(drawing: Drawing, folder: Path) -> None:
    """PNG, PDF and CSV. Without its date, the same figure is the same file."""
    name = re.sub(r"[^A-Za-z0-9._+-]", "_", f"{drawing.experiment}-{drawing.name}").lstrip(".-")
    drawing.figure.savefig(folder / f"{name}.png", facecolor="white")
    drawing.figure.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None})
    drawing.data.to_csv(folder / f"{name}.csv", index=False, float_format="%.8g", lineterminator="\n")
