"""The quickstart as a notebook: the page is the source, ``python -m tests.notebook`` runs it and writes the file."""

import contextlib
import io
import json
import os
import re
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "quickstart.md"
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


def cells_of(page):
    """Words and code in turn, as (kind, text)."""
    parts = re.split(r"^```python\n(.*?)^```\n", page, flags=re.MULTILINE | re.DOTALL)
    found = [("code" if i % 2 else "markdown", part.strip()) for i, part in enumerate(parts)]
    # Pages are beside each other; the notebook is not beside them.
    return [(kind, re.sub(r"\]\((\w+\.md)", r"](../docs/\1", text)) for kind, text in found if text]


def write(path=NOTEBOOK):
    names, cells = {"__name__": "__main__"}, []
    for i, (kind, text) in enumerate(cells_of(PAGE.read_text())):
        cell = {"cell_type": kind, "id": f"cell-{i}", "metadata": {}, "source": text.splitlines(keepends=True)}
        if kind == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(text, names)  # noqa: S102 (our own page)
            lines = printed.getvalue().splitlines(keepends=True)
            shown = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
            cell |= {"execution_count": None, "outputs": shown}
        cells.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the page writes files
        write()
