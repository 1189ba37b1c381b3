"""From a folder of results to tables, figures and one HTML file. Reads rows, never models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from varprop.errors import ResultsError

if TYPE_CHECKING:
    from varprop.report.sections import Maker


def write_report(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    sections: Sequence[Maker] | None = None,
) -> Path:
    """Write the report of a results folder and return the path of its HTML file.

    ``out`` is a folder, by default ``report`` in the results folder, or the name of an ``.html`` file. Figures (PNG,
    PDF, CSV) and tables go to ``figures`` and ``tables`` beside the file, which itself needs none of them.
    ``sections`` are by default those of ``varprop.report.sections``.
    """
    try:
        from varprop.report.writing import write
    except ModuleNotFoundError as error:
        raise ResultsError(f"a report needs {error.name}: pip install 'varprop[report]'") from error
    return write(folder, out, sections)
