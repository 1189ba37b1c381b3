"""From a folder of results to tables, figures and one HTML file. Reads rows, never models."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from varprop.errors import ResultsError
from varprop.evaluation.evaluate import record
from varprop.evaluation.results import Results, read_results

if TYPE_CHECKING:
    from varprop.report.figures import Drawing
    from varprop.report.sections import Maker


def write_report(
    source: str | os.PathLike[str] | Mapping[str, Any],
    out: str | os.PathLike[str] | None = None,
    sections: Sequence[Maker] | None = None,
) -> Path:
    """Write the report of a results folder and return the path of its HTML file.

    In the place of a folder, evaluations by name will do, ``{"mean": vp.evaluate(…), "cvp": …}``, or pairs of them, on
    held-out and on test data; their rows are added to the folder ``out``. Else ``out`` is a folder, by default
    ``report`` in the results folder, or the name of an ``.html`` file. Figures (PNG, PDF, CSV) and tables go to
    ``figures`` and ``tables`` beside the file, which itself needs none of them.
    ``sections`` are by default those of ``varprop.report.sections``.
    """
    try:
        from varprop.report import page, style, tables
        from varprop.report.sections import SECTIONS
        from varprop.report.summary import Summary
    except ModuleNotFoundError as error:
        raise ResultsError(f"a report needs {error.name}: pip install 'varprop[report]'") from error
    results = read_results(_kept(source, out) if isinstance(source, Mapping) else source)
    target = results.folder / "report" if out is None else Path(out)
    target = target if target.suffix == ".html" else target / "report.html"
    summary = Summary(results.rows)
    with style.drawing_style():
        made = [section for maker in sections or SECTIONS if (section := maker(results, summary)) is not None]
        text = page.render(summary, made)
        parts = [part for section in made for part in section.parts]
        try:
            for name in ("figures", "tables"):
                (target.parent / name).mkdir(parents=True, exist_ok=True)
            drawings = [drawing for part in parts for drawing in part.drawings]
            stems = _stems(dict.fromkeys(drawing.experiment for drawing in drawings))
            for drawing in drawings:
                _save(drawing, target.parent / "figures" / f"{stems[drawing.experiment]}-{drawing.name}")
            tables.write([table for part in parts for table in part.tables], target.parent / "tables")
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ResultsError(f"cannot write {target}: {error.strerror or error}; choose another folder") from error
    return target


def _kept(evaluations: Mapping[str, Any], out: str | os.PathLike[str] | None) -> Path:
    """A results folder with a row for each evaluation."""
    if out is None:
        raise ResultsError("say where the report of these evaluations shall go: write_report(evaluations, folder)")
    folder = Path(out).parent if Path(out).suffix == ".html" else Path(out)
    for method, found in evaluations.items():
        before, after = found if isinstance(found, tuple) else (None, found)
        Results(folder).add(*record(before, after, row=folder.absolute().name, method=method, seed=0))
    return folder


def _stems(names: Iterable[str]) -> dict[str, str]:
    """Of each name what a file can be called: short, of plain characters, and like no other's."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        stem = re.sub(r"[^A-Za-z0-9._+-]", "_", name).lstrip(".-")[:80]
        if stem.lower() in taken:  # some file systems do not know upper case from lower
            stem = f"{stem}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        taken.add(stem.lower())
        found[name] = stem
    return found


def _save(drawing: Drawing, path: Path) -> None:
    """PNG, PDF and CSV. Without its date, the same figure is the same file."""
    drawing.figure.savefig(f"{path}.png", facecolor="white")
    drawing.figure.savefig(f"{path}.pdf", metadata={"CreationDate": None})
    drawing.data.to_csv(f"{path}.csv", index=False, float_format="%.8g", lineterminator="\n")
