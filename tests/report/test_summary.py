import csv
import dataclasses
import io
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from varprop.report import Row, Summary, tables
from varprop.report.columns import COLUMNS
from varprop.report.summary import Estimate, average, best, estimate, pareto_front
from varprop.report.verdicts import judge

ACCURACY, AURC = (next(c for c in COLUMNS if c.key == key) for key in ("accuracy", "aurc"))


def rows(**values):
    """digits__CVP=[…]: accuracies of seeds 0, 1, …; None where a seed is missing."""
    made = []
    for name, found in values.items():
        experiment, method = name.split("__")
        made += [Row(experiment, method, i, 10, {"accuracy": v}) for i, v in enumerate(found) if v is not None]
    return made


def test_mean_and_standard_error_by_hand():
    # Deviations −1, 0, 1: s = 1, and 1/√3 is the standard error.
    assert estimate([1, 2, 3]) == Estimate(2, pytest.approx(1 / math.sqrt(3)), 3)
    assert estimate([1, math.nan, 3]) == Estimate(2, pytest.approx(1), 2)
    alone = estimate([5])
    assert alone.mean == 5
    assert math.isnan(alone.sem)
    assert math.isnan(estimate([]).mean)
    assert estimate([1, math.inf]).mean == math.inf


def test_a_time_measured_once_for_all_seeds_has_no_spread():
    time = next(c for c in COLUMNS if c.key == "cost.sample")
    made = [Row("d", "CVP", seed, 10, {"accuracy": 0.5}, cost={"sample": 1.5}) for seed in range(3)]
    assert math.isnan(Summary(made).estimate("d", "CVP", time).sem)
    assert Summary(made).estimate("d", "CVP", ACCURACY).sem == 0
    again = [*made, Row("d", "CVP", 3, 10, {"accuracy": 0.5}, cost={"sample": 1.7})]
    assert Summary(again).estimate("d", "CVP", time) == Estimate(pytest.approx(1.6), pytest.approx(0.1), 2)


def test_paired_differences_cancel_what_seeds_share():
    summary = Summary(rows(d__CVP=[0.5, 0.7, 0.9], d__mean=[0.4, 0.61, 0.79]))
    # Differences 10, 9, 11 points: mean 10, s = 1. Unpaired, the standard error would be 16 points.
    found = summary.difference("d", "CVP", "mean", ACCURACY)
    assert found == Estimate(pytest.approx(10), pytest.approx(1 / math.sqrt(3)), 3)
    back = summary.difference("d", "mean", "CVP", ACCURACY)
    assert back.mean == pytest.approx(-10)
    assert summary.estimate("d", "CVP", ACCURACY).sem == pytest.approx(20 / math.sqrt(3))


def test_only_common_seeds_are_paired():
    summary = Summary(rows(d__a=[0.5, 0.6, None, 0.9], d__b=[None, 0.5, 0.1, 0.5]))
    assert summary.difference("d", "a", "b", ACCURACY) == Estimate(pytest.approx(25), pytest.approx(15), 2)
    assert summary.difference("d", "a", "nobody", ACCURACY).count == 0


def test_equal_infinite_values_do_not_differ():
    infinite = [Row("d", m, s, 10, {"nll": math.inf}) for m in "ab" for s in range(2)]
    nll = next(c for c in COLUMNS if c.key == "nll")
    assert Summary(infinite).difference("d", "a", "b", nll).mean == 0


def test_macro_average_combines_errors_as_independent():
    assert average([Estimate(1, 3, 5), Estimate(2, 4, 4)]) == Estimate(1.5, 2.5, 4)  # √(9 + 16)/2
    summary = Summary(rows(d__a=[0.1, 0.3], e__a=[0.5, 0.9], d__b=[0.2, 0.2]))
    found = summary.macro("a", ACCURACY)
    assert found == Estimate(pytest.approx(45), pytest.approx(math.hypot(10, 20) / 2), 2)
    assert summary.macro("b", ACCURACY).count == 0  # b has no result in e
    assert [name for name, _ in tables.macro(summary).lines] == ["a"]


def test_the_best_depends_on_the_direction_and_on_what_is_shown():
    means = {"a": 1.001, "b": 2.0, "c": 0.999, "d": math.nan}
    assert best(means, AURC) == {"a", "c"}  # both are shown as 1.00
    assert best(means, ACCURACY) == {"b"}
    assert best({"a": 1.0, "b": 1.0}, ACCURACY) == frozenset()
    assert best({"a": 1.0}, ACCURACY) == frozenset()


def test_pareto_front_by_hand():
    points = [(1, 5), (2, 3), (2, 4), (3, 3), (4, 1), (0.5, 9)]
    assert pareto_front(points, higher=False) == [5, 0, 1, 4]
    assert pareto_front(points, higher=True) == [5]
    assert pareto_front([], higher=True) == []


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12), st.booleans())
def test_the_front_is_what_nothing_dominates(points, higher):
    sign = -1 if higher else 1
    costs = [(x, sign * y) for x, y in points]
    free = {p for p in costs if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in costs)}
    front = pareto_front(points, higher)
    assert [costs[i] for i in front] == sorted(free)


def test_columns_have_the_papers_order_and_units():
    keys = [column.key for column in COLUMNS]
    assert keys.index("accuracy") < keys.index("aurc") < keys.index("c@1") < keys.index("phi@10") < keys.index("ece")
    assert keys.index("ece") < keys.index("brier") < keys.index("nll") < keys.index("cost.sample")
    row = Row("d", "m", 0, 1, {"accuracy": 0.5, "aurc": 0.012, "nll": 0.7}, cost={"plain": 3.0, "sample": 2.0})
    shown = {c.key: c.show(c.of(row)) for c in COLUMNS}
    assert shown["accuracy"] == "50.00"
    assert shown["aurc"] == "1.20"
    assert shown["nll"] == "0.700"
    assert shown["cost.sample"] == "2.00"
    assert shown["cost.plain"] == "3.00"
    assert shown["ece"] == "–"
    assert AURC.label == "AURC ×100, lower is better"
    assert ACCURACY.label == "Accuracy (%), higher is better"


def made_tables():
    summary = Summary(rows(d__mean=[0.5, 0.7], d__CVP=[0.8, 0.9]))
    return summary, tables.results(summary, "d")


def test_tables_as_text_and_markdown():
    _, table = made_tables()
    assert table.text().splitlines() == [
        "d: mean ± standard error over 2 seeds",
        "Method     Accuracy ↑",
        "mean    60.00 ± 10.00",
        "CVP      85.00 ± 5.00 *",
    ]
    assert table.markdown().splitlines() == [
        "| Method | Accuracy ↑ |",
        "| --- | ---: |",
        "| mean | 60.00 ± 10.00 |",
        "| CVP | **85.00 ± 5.00** |",
    ]
    assert r"CVP & \textbf{85.00}\,{\scriptsize$\pm$5.00} \\" in table.latex()


def test_differences_say_who_is_better():
    summary, _ = made_tables()
    table = tables.differences(summary, "d", "CVP")
    assert [(name, cells[0].text) for name, cells in table.lines] == [("mean", "+25.00 ± 5.00")]
    assert judge(Estimate(25, 5, 3), ACCURACY) == "better"
    assert judge(Estimate(-25, 5, 3), ACCURACY) == "worse"
    assert judge(Estimate(-25, 5, 3), AURC) == "better"
    assert judge(Estimate(10, 5, 3), ACCURACY) == "better"
    assert judge(Estimate(10, 5, 3), ACCURACY, errors=2) == "no difference"
    assert judge(Estimate(25, math.nan, 1), ACCURACY) == "one seed: not known"
    assert judge(Estimate(math.nan, math.nan, 0), ACCURACY) == "–"


def test_csv_tables_have_all_digits(made):
    summary = Summary(made.rows)
    found = list(csv.DictReader(io.StringIO(tables.results(summary, "digits").csv())))
    assert [line["method"] for line in found] == list(summary.methods)
    for line in found:
        for column in summary.columns:
            expected = summary.estimate("digits", line["method"], column)
            for name, value in ((column.key, expected.mean), (f"{column.key}_sem", expected.sem)):
                assert line[name] == ("" if math.isnan(value) else repr(value))


def test_times_have_no_best(made):
    table = tables.results(Summary(made.rows), "digits")
    marked = {cell.column.key for _, cells in table.lines for cell in cells if cell.best}
    assert "accuracy" in marked
    assert not {"cost.plain", "cost.sample"} & marked


def test_one_seed_shows_no_error():
    summary = Summary([dataclasses.replace(row, seed=0) for row in rows(d__a=[0.5], d__b=[0.25])])
    assert "±" not in tables.results(summary, "d").text().splitlines()[2]
    assert np.isnan(summary.difference("d", "a", "b", ACCURACY).sem)
