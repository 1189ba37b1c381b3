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


def rows_of(name, benchmark, *, stand_in, level=0.1, methods=METHODS, timed=True):
    """AURC falls from method to method."""
    config = {"title": name.upper(), "paper": benchmark, "stand_in": stand_in}
    for number, method in enumerate(methods):
        for seed in range(3):
            metrics = dict.fromkeys(GRID, 0.5) | {"aurc": level - 0.01 * number + 0.001 * seed}
            cost = {"plain": 1.0 + number, "sample": 1.0} if timed else None
            yield Row(name, method, seed, 10, metrics, cost=cost, config=config)


def all_six(*left_out, full=6):
    """Only the first ``full`` have times and the variants of the ablation."""
    rows = []
    for number, benchmark in enumerate(benchmarks()):
        if benchmark not in left_out:
            some = {} if number < full else {"methods": METHODS[:5], "timed": False}
            rows += rows_of(f"row{number}", benchmark, stand_in=number > 0, level=0.1 * (number + 1), **some)
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


def test_ablation_and_times_are_of_the_benchmarks_that_have_them():
    section, found = made(all_six(full=2))
    assert found["macro-main"].title == "Average of 6 of 6 benchmarks: main table"
    assert found["macro-ablation"].title == "Average of 2 of 6 benchmarks: ablation table, of ROW0, ROW1"
    assert found["macro-ablation"].methods == ("cvp", "cvp-none", "streamlining")
    (drawing,) = [drawing for group in section.parts for drawing in group.drawings]
    assert drawing.title == "All metrics and time: average of 2 benchmarks, of ROW0, ROW1"
    section, found = made(all_six(full=1))
    assert "macro-ablation" not in found
    assert not any(group.drawings for group in section.parts)


def test_cvp_is_judged_over_all_six():
    judged = made(all_six())[1]["macro-verdicts"].cells.set_index("Against")
    assert judged.loc["mean", "AURC ↓"] == "better (−4.00 ± 0.00)"


def test_a_panel_for_each_metric():
    section, _ = made(all_six())
    (drawing,) = [drawing for group in section.parts for drawing in group.drawings]
    assert list(drawing.data["metric"].unique()) == list(GRID)
    assert sum(axes.get_visible() for axes in drawing.figure.axes) == len(GRID) == 12


def test_one_row_has_no_average():
    assert macro(None, Summary(list(rows_of("a", benchmarks()[0], stand_in=False)))) is None
