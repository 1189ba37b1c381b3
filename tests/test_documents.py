"""Every Python block of the documents runs, in order, as a reader would run them."""

import functools
import json
import re
import textwrap
from pathlib import Path

import pytest
import torch

from experiments.paper import paper_report, verdicts
from experiments.paper.benchmark_average import averages
from experiments.paper.published import compared
from tests import notebook
from varprop.evaluation.results import read_results
from varprop.report import tables
from varprop.report.summary import Summary

ROOT = Path(__file__).parents[1]
# Also blocks inside lists and admonitions, which are indented.
BLOCK = re.compile(r"^(?P<indent> *)```python[^\n]*\n(?P<code>.*?)^(?P=indent)```", flags=re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r'\s*```text title="Output"\n(.*?)```', flags=re.DOTALL)
NUMBER = re.compile(r"-?\d+\.\d+")
FENCE = re.compile(r"^[ >]*(```|~~~) *(python|py|pycon)\b", flags=re.MULTILINE | re.IGNORECASE)
TABLE = re.compile(r"<!-- table: (\S+) ([\w-]+) (\S+) -->\n\n((?:\|[^\n]*\n)+)")
# Which train networks: a quarter of a minute of a core and more.
LONG = {"README.md"} | {
    f"docs/{page}.md"
    for page in ["calibration", "deployment", "index", "integrations", "quickstart", "reproduction", "saving", "tasks"]
}
# Libraries a page shows that are no dependencies of the tests: they are installed apart, from peers.txt.
PEERS = {"docs/posteriors.md": ("laplace", "bayesian_torch")}


def pages():
    written = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in written if FENCE.search(path.read_text())]


@pytest.mark.filterwarnings(
    # Of Lightning's own making: few loader workers, a deprecated call inside.
    "ignore::UserWarning:lightning",
    "ignore::FutureWarning:lightning",
    "ignore::DeprecationWarning:lightning",
    # laplace-torch says it whenever a prior precision is tuned.
    "ignore:By default `link_approx` is `probit`:UserWarning",
)
@pytest.mark.parametrize("page", [pytest.param(p, marks=pytest.mark.second) if p in LONG else p for p in pages()])
def test_python_blocks_run(page, capsys, tmp_path, monkeypatch):
    for peer in PEERS.get(page, ()):
        pytest.importorskip(peer)
    text = (ROOT / page).read_text()
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == len(FENCE.findall(text)), "a block that would not be run: fence it with ```python"
    monkeypatch.chdir(tmp_path)  # pages write files
    torch.manual_seed(0)  # whatever ran before
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks:
        # Blank lines in front, so that a traceback names the line of the page.
        above = "\n" * (text.count("\n", 0, block.start("code")))
        code = compile(above + textwrap.dedent(block["code"]), page, "exec")
        exec(code, names)  # noqa: S102 (our own documents)
        printed = capsys.readouterr().out
        if shown := PRINTED.match(text, block.end()):
            assert NUMBER.sub("", shown[1]).split() == NUMBER.sub("", printed).split()
            # Other machines round otherwise.
            assert [*map(float, NUMBER.findall(shown[1]))] == pytest.approx(
                [*map(float, NUMBER.findall(printed))], rel=0.05, abs=0.01
            )


def test_the_notebook_is_the_quickstart():
    """Which is run above. `python -m tests.notebook` writes it."""
    cells = json.loads(notebook.NOTEBOOK.read_text())["cells"]
    found = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    assert found == notebook.cells_of(notebook.PAGE.read_text())
    assert all(cell["outputs"] for cell, (_, text) in zip(cells, found, strict=True) if "print(" in text)


def lines(table):
    """The cells of a Markdown table, however wide its columns are."""
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()]
    return [found[0], *found[2:]]


@functools.cache
def drawn(folder):
    """The tables that a report of these rows would write."""
    summary = Summary(read_results(ROOT / "docs" / folder).rows)
    found = averages(summary)
    for scope in paper_report.scopes(summary):
        found += [compared(summary, scope, table) for table in tables.kinds(summary, scope)]
        found += [verdicts.verdict(summary, scope), verdicts.order(summary, scope)]
    return [table for table in found if table]


@pytest.mark.second  # it draws tables, as the report does
@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_tables_are_those_of_the_stored_rows(page):
    """A table after a comment such as <!-- table: results/digits main digits --> is what the report would write."""
    for folder, kind, name, shown in TABLE.findall(page.read_text()):
        written = [lines(t.markdown()) for t in drawn(folder) if (t.kind, t.name) == (kind, name)]
        assert lines(shown) in written, f"{kind} of {name} in {folder}: the report writes another table"


def test_every_page_is_in_the_navigation():
    """An orphan is built, but nobody finds it; mkdocs itself only says so."""
    listed = set(re.findall(r"[\w/]+\.md\b", (ROOT / "mkdocs.yml").read_text()))
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    assert listed == {path.as_posix() for path in pages if path.parts[0] != "results"}  # tables: no pages
