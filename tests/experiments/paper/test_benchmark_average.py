"""The paper's six benchmarks together, of synthetic rows: some of them stand-ins, some missing."""

import numpy as np
import pytest

from experiments.paper.benchmark_average import GRID, chosen, macro
from experiments.paper.published import averaged, benchmarks
from varprop.evaluation.results import Row
from varprop.report.style import drawing_style
from varprop.report.summary import Summary

pytestmark = pytest.mark.second
METHODS = ("mean", "mc-2", "mc-4", "streamlining", "cvp", "cvp-none")


def rows_of(name, benchmark, *, stand_in, level=0.1):
    """AURC falls from method to method."""
    config = {"title": name.upper(), "paper": benchmark, "stand_in": stand_in}
    for number, method in enumerate(METHODS):
        for seed in range(3):
            metrics = dict.fromkeys(GRID, 0.5) | {"aurc": level - 0.01 * number + 0.001 * seed}
            yield Row(name, method, seed, 10, metrics, cost={"plain": 1.0 + number, "sample": 1.0}, config=config)


def all_six(*left_out):
    rows = [
        row
        for number, benchmark in enumerate(benchmarks())
        if benchmark not in left_out
        for row in rows_of(f"row{number}", benchmark, stand_in=number > 0, level=0.1 * (number + 1))
    ]
    other = [*rows_of("other", None, stand_in=False), *rows_of("second", benchmarks()[0], stand_in=True)]
    return Summary([*other, *rows])


def made(summary):
    with drawing_style():
        section = macro(None, summary)
    found = [table for group in section.parts for table in group.tables]
    return section, {table.kind: table for table in found}


def test_six_rows_and_their_average():
    summary = all_six()
    section, found = made(summary)
    assert "Missing" not in section.note
    lines = found["macro-rows"].cells.to_numpy().tolist()
    assert [line[0] for line in lines] == list(benchmarks())
    assert [line[1] for line in lines] == [f"ROW{number}" for number in range(6)], "the real one, before its stand-in"
    assert [line[2] for line in lines] == ["the benchmark itself", *["stand-in"] * 5]
    main = found["macro-main"]
    at = main.methods.index("cvp")
    wanted = np.mean([[0.1 * (n + 1) - 0.04 + 0.001 * seed for seed in range(3)] for n in range(6)])
    assert main.cells.iloc[at]["AURC ↓"].startswith(f"{100 * wanted:.2f}")
    assert main.cells.iloc[at + 1, 0] == "paper"
    assert main.cells.iloc[at + 1]["AURC ↓"] == averaged(benchmarks(), "cvp", "aurc").text
    assert {"macro-extended", "macro-ablation", "macro-sampling"} <= found.keys()
    assert found["macro-ablation"].cells.iloc[1, 0] == "paper", "which has the ablation of all six together alone"


def test_the_order_is_compared_with_that_of_the_same_rows():
    order = made(all_six())[1]["macro-agreement"].cells.set_index("Metric")
    theirs = {method: averaged(benchmarks(), method, "aurc").mean for method in METHODS[:5]}
    same = sum(theirs[a] > theirs[b] for i, a in enumerate(METHODS[:5]) for b in METHODS[i + 1 : 5])
    assert order.loc["AURC ↓", "Pairs in the paper's order"] == str(same)


def test_missing_rows_are_said_to_be_missing():
    gone = benchmarks()[2], benchmarks()[4]
    summary = all_six(*gone)
    section, found = made(summary)
    assert f"Missing: {gone[0]}, {gone[1]}." in section.note
    assert "4 of the paper's 6" in section.note
    lines = found["macro-rows"].cells.to_numpy().tolist()
    assert [line[1] for line in lines if line[0] in gone] == ["missing", "missing"]
    assert [chosen(summary)[benchmark] for benchmark in gone] == [None, None]
    assert "paper" not in found["macro-ablation"].cells.iloc[:, 0].tolist()
    there = [benchmark for benchmark in benchmarks() if benchmark not in gone]
    at = found["macro-main"].methods.index("cvp") + 1
    assert found["macro-main"].cells.iloc[at]["AURC ↓"] == averaged(there, "cvp", "aurc").text


def test_a_panel_for_each_metric():
    section, _ = made(all_six())
    (drawing,) = [drawing for group in section.parts for drawing in group.drawings]
    assert list(drawing.data["metric"].unique()) == list(GRID)
    assert sum(axes.get_visible() for axes in drawing.figure.axes) == len(GRID) == 12


def test_one_row_has_no_average():
    assert macro(None, Summary(list(rows_of("a", benchmarks()[0], stand_in=False)))) is None
