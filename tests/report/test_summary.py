import math

import pandas as pd
import pytest

from varprop.evaluation.results import Row
from varprop.report import shown_methods, tables
from varprop.report.columns import COLUMNS, NAMED
from varprop.report.summary import Summary

pytestmark = pytest.mark.second

SIZES = tuple(f"mc-{2**i}" for i in range(7))
ABLATION = ("cvp", "cvp-minus-norm", "cvp-minus-activation", "cvp-output-only", "cvp-none")
ABLATION += ("streamlining", "streamlining-per-layer", "streamlining-none")
METHODS = ("mean", "temperature", *SIZES, *ABLATION)


def summary(**values):
    """digits__cvp=[…]: accuracies of seeds 0, 1, …; None where a seed is missing."""
    made = []
    for name, found in values.items():
        experiment, method = name.split("__")
        made += [Row(experiment, method, i, 10, {"accuracy": v}) for i, v in enumerate(found) if v is not None]
    return Summary(made)


def numbers(estimates, method, key="accuracy"):
    return float(estimates.mean.at[method, key]), float(estimates.sem.at[method, key])


def test_mean_and_standard_error_by_hand():
    # Deviations −1, 0, 1 points: s = 1, and 1/√3 is the standard error.
    found = summary(d__a=[0.01, 0.02, 0.03], d__b=[0.5]).estimates(("d",))
    assert numbers(found, "a") == pytest.approx((2, 1 / math.sqrt(3)))
    assert numbers(found, "b") == pytest.approx((50, math.nan), nan_ok=True)
    infinite = Summary([Row("d", "a", seed, 10, {"nll": v}) for seed, v in enumerate((1.0, math.inf))])
    assert numbers(infinite.estimates(("d",)), "a", "nll")[0] == math.inf


def test_a_time_measured_once_for_all_seeds_has_no_spread():
    made = [Row("d", "cvp", seed, 10, {"accuracy": 0.5}, cost={"sample": 1.5}) for seed in range(3)]
    found = Summary(made).estimates(("d",))
    assert numbers(found, "cvp", "cost.sample") == pytest.approx((1.5, math.nan), nan_ok=True)
    assert numbers(found, "cvp") == (50, 0)


def test_paired_differences_cancel_what_seeds_share():
    found = summary(d__cvp=[0.5, 0.7, 0.9], d__mean=[0.4, 0.61, 0.79])
    # Differences 10, 9, 11 points: mean 10, s = 1. Unpaired, the standard error would be 16 points.
    assert numbers(found.differences(("d",), "cvp"), "mean") == pytest.approx((10, 1 / math.sqrt(3)))
    assert numbers(found.differences(("d",), "mean"), "cvp")[0] == pytest.approx(-10)
    uneven = summary(d__a=[0.5, 0.6, None, 0.9], d__b=[None, 0.5, 0.1, 0.5])
    assert numbers(uneven.differences(("d",), "a"), "b") == pytest.approx((25, 15))


def test_equal_infinite_values_do_not_differ():
    infinite = Summary([Row("d", m, s, 10, {"nll": math.inf}) for m in "ab" for s in range(2)])
    assert numbers(infinite.differences(("d",), "a"), "b", "nll")[0] == 0


def test_averages_combine_errors_as_independent():
    found = summary(d__a=[0.1, 0.3], e__a=[0.5, 0.9], d__b=[0.2, 0.2])
    averages = found.estimates(("d", "e"))
    assert numbers(averages, "a") == pytest.approx((45, math.hypot(10, 20) / 2))
    assert list(averages.mean.index) == ["a"]  # b has no result in e
    gaps = summary(d__a=[0.1, 0.3], e__a=[0.5, 0.9], d__b=[0.2, 0.2], e__b=[0.1, 0.1]).differences(("d", "e"), "a")
    assert numbers(gaps, "b") == pytest.approx((30, math.hypot(10, 20) / 2))


def test_columns_show_units_and_what_is_missing():
    row = Row("d", "m", 0, 1, {"accuracy": 0.5, "aurc": 0.012, "nll": 0.7}, cost={"plain": 3.0, "sample": 2.0})
    shown = {c.key: c.show(c.of(row)) for c in COLUMNS}
    assert {key: shown[key] for key in ("accuracy", "aurc", "nll", "cost.sample", "cost.plain", "ece")} == {
        "accuracy": "50.00",
        "aurc": "1.20",
        "nll": "0.700",
        "cost.sample": "2.00",
        "cost.plain": "3.00",
        "ece": "–",
    }
    assert NAMED["aurc"].show(-0.5, 0.25, "+") == "−0.50 ± 0.25"
    assert NAMED["aurc"].label == "AURC ×100, lower is better"
    assert NAMED["accuracy"].label == "Accuracy (%), higher is better"


def test_who_is_in_which_table():
    assert shown_methods.main(METHODS) == ("mean", "temperature", "mc-2", "mc-4", "mc-64", "cvp", "streamlining")
    assert shown_methods.main(("mean", "mc-8", "mine")) == ("mean", "mc-8", "mine")
    assert shown_methods.sampled(METHODS) == ("mean", *SIZES, "cvp")
    assert shown_methods.sampled(("mean", "cvp")) == ()
    assert shown_methods.ablated(METHODS) == ABLATION
    assert shown_methods.ablated(("mean", "cvp", "streamlining")) == ()
    assert shown_methods.scaled((*METHODS, "mine"))[-3:] == ("cvp", "streamlining-per-layer", "mine")
    assert set(shown_methods.without_variants(METHODS)) == {"mean", "temperature", *SIZES, "cvp", "streamlining"}
    assert (shown_methods.reference(METHODS), shown_methods.reference(("a", "b"))) == ("cvp", "b")


def test_a_table_in_every_format():
    found = summary(d__mean=[0.5, 0.7], d__cvp=[0.8, 0.9])
    main = next(table for table in tables.kinds(found, ("d",)) if table.kind == "main")
    assert main.text().splitlines()[0] == "d: mean ± standard error over 2 seeds"
    assert [line.split() for line in main.text().splitlines()[3:]] == [
        ["mean", "60.00", "±", "10.00"],
        ["CVP", "85.00", "±", "5.00", "*"],
    ]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in main.markdown().splitlines()]
    assert lines[0] == ["Method", "Accuracy ↑"]
    assert lines[2:] == [["mean", "60.00 ± 10.00"], ["CVP", "**85.00 ± 5.00**"]]
    assert r"CVP & \textbf{85.00 $\pm$ 5.00} \\" in main.latex()
    assert r"Accuracy $\uparrow$" in main.latex()
    assert main.numbers.to_dict("list") == {
        "experiment": ["d", "d"],
        "method": ["mean", "cvp"],
        "accuracy": [60, 85],
        "accuracy_sem": pytest.approx([10, 5]),
    }


def test_the_best_is_what_looks_best(made):
    close = summary(d__a=[0.50001], d__b=[0.50002], d__c=[0.4])
    (main, *_) = tables.kinds(close, ("d",))
    assert list(main.marks["Accuracy ↑"]) == ["best", "best", ""]
    (same, *_) = tables.kinds(summary(d__a=[0.5], d__b=[0.5]), ("d",))
    assert list(same.marks["Accuracy ↑"]) == ["", ""]
    everything = next(t for t in tables.kinds(Summary(made.rows), ("digits",)) if t.kind == "all")
    marked = {heading for heading in everything.marks if "best" in set(everything.marks[heading])}
    assert "NLL ↓" in marked
    assert not any("Time" in heading for heading in marked)  # the cheapest method is no finding


def test_a_method_without_all_seeds_says_so_and_is_never_the_best():
    found = summary(
        d__mean=[0.5, 0.7, 0.6], d__cvp=[0.8, 0.9, 0.7], d__new=[None, 0.9, 0.99], d__newer=[None, None, 0.99]
    )
    made = {table.kind: table for table in tables.kinds(found, ("d",))}
    assert made["main"].cells["Method"].tolist() == ["mean", "CVP", "new (2 of 3 seeds)"]
    assert made["main"].marks["Accuracy ↑"].tolist() == ["", "best", ""]
    assert made["all"].cells["Method"].tolist()[-1] == "newer (1 of 3 seeds)", "with so few it is in this table alone"
    gaps = tables.differences(found, ("d",), "cvp")
    assert gaps.cells.to_numpy().tolist()[0] == ["mean", "+20.00 ± 5.77"]
    assert gaps.cells.to_numpy().tolist()[-1] == ["newer (1 of 3 seeds)", "−29.00"]
    both = summary(d__cvp=[0.8, 0.9], d__new=[0.7], e__cvp=[0.5], e__new=[0.5])
    assert both.named(("d", "e"), "new") == "new (not all seeds)"


def test_variants_are_compared_over_the_seeds_that_all_have():
    found = summary(
        d__cvp=[0.8, 0.9, 0.1], d__streamlining=[0.7, 0.7, 0.1], **{"d__cvp-none": [0.6, 0.7], "d__mc-8": [0.2] * 3}
    )
    made = {table.kind: table for table in tables.kinds(found, ("d",))}
    assert made["ablation"].title == "d: mean ± standard error over 2 seeds"
    assert made["ablation"].cells["Method"].tolist() == ["CVP", "CVP, none", "Streamlining"]
    assert made["ablation"].cells["Accuracy ↑"].tolist()[0] == "85.00 ± 5.00"
    assert made["sampling"].title == made["main"].title == "d: mean ± standard error over 3 seeds"
    apart = summary(d__cvp=[0.8], **{"d__cvp-none": [None, 0.6]})
    made = {table.kind: table for table in tables.kinds(apart, ("d",))}
    assert made["ablation"].cells["Method"].tolist() == ["CVP (1 of 2 seeds)", "CVP, none (1 of 2 seeds)"]


def test_differences_say_who_is_better():
    found = tables.differences(summary(d__mean=[0.5, 0.7], d__cvp=[0.8, 0.9]), ("d",), "cvp")
    assert found.cells.to_numpy().tolist() == [["mean", "+25.00 ± 5.00"]]
    assert found.marks["Accuracy ↑"].tolist() == ["better"]
    assert tables.judge(-25, 5, higher=True, errors=2) == "worse"
    assert tables.judge(-25, 5, higher=False, errors=2) == "better"
    assert tables.judge(10, 5, higher=True, errors=2) == ""
    assert tables.judge(25, math.nan, higher=True, errors=2) == ""


def test_kinds_of_tables():
    made = [
        Row(experiment, method, seed, 10, {"accuracy": 0.5 + 0.01 * i, "c@2": 0.4})
        for experiment in ("d", "e")
        for i, method in enumerate(METHODS)
        for seed in range(2)
    ]
    found = Summary(made)
    one, several = (tables.kinds(found, scope) for scope in (("d",), ("d", "e")))
    assert [table.kind for table in one] == ["main", "extended", "sampling", "ablation", "all"]
    assert [table.kind for table in several] == ["main", "extended", "sampling", "ablation"]
    assert {table.name for table in several} == {"average"}
    assert one[3].methods == ABLATION
    assert list(one[1].cells.columns) == ["Method", "C@2% ↑"]


def test_signs_of_the_formats_are_escaped():
    table = tables.words("runs", "digits", "a title", pd.DataFrame({"Fact": ["a|b$^{c}"], "Value": ["1"]}))
    assert r"a\|b$^{c}" in table.markdown()
    assert r"a|b\$\^{}\{c\}" in table.latex()
