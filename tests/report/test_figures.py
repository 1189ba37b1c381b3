"""Figures, by the numbers that come with them."""

import math

import numpy as np
import pandas as pd
import pytest

from varprop.evaluation.results import Row
from varprop.report import figures, layers
from varprop.report.columns import NAMED
from varprop.report.style import drawing_style, styles
from varprop.report.summary import Summary

pytestmark = pytest.mark.second

KINDS = {".png": b"\x89PNG", ".pdf": b"%PDF", ".csv": b""}


def test_every_figure_is_saved_in_three_kinds(report, made):
    found = {path.name for path in (report.parent / "figures").iterdir()}
    metrics = [c.key.replace("@", "") for c in Summary(made.rows).columns if not c.timed]
    names = [f"pareto-{key}" for key in metrics] + ["certified", "risk-coverage", "risk-difference", "reliability"]
    names += ["scales", "fidelity-variance-ratio", "fidelity-mean-error"]
    assert found == {f"digits-{name}{kind}" for name in names for kind in KINDS}
    for path in (report.parent / "figures").iterdir():
        assert path.read_bytes().startswith(KINDS[path.suffix])
        assert path.stat().st_size > 200


def read(report, name):
    return pd.read_csv(report.parent / "figures" / f"digits-{name}.csv")


def test_the_data_of_a_pareto_plot_are_the_summary(report, made):
    estimates = Summary(made.rows).estimates(("digits",))
    found = read(report, "pareto-aurc").set_index("method")
    assert list(found.index) == ["mean", "mc-4", "mc-8", "streamlining", "cvp"]  # stubborn has no cost
    for name, column in (("time", "cost.plain"), ("aurc", "aurc")):
        np.testing.assert_allclose(found[name], estimates.mean.loc[found.index, column], rtol=1e-6)
        np.testing.assert_allclose(found[f"{name}_sem"], estimates.sem.loc[found.index, column], rtol=1e-6)


def test_curves_are_averaged_over_seeds(report, made):
    found = read(report, "risk-coverage")
    rows = [row for row in made.rows if row.method == "cvp"]
    ours = found[found["method"] == "cvp"]
    np.testing.assert_allclose(ours["coverage"], np.arange(1, 101) / 100)
    np.testing.assert_allclose(ours["risk"], np.mean([row.curve for row in rows], axis=0), rtol=1e-6)
    spread = np.std([row.curve for row in rows], axis=0, ddof=1) / math.sqrt(3)
    np.testing.assert_allclose(ours["risk_sem"], spread, rtol=1e-5, atol=1e-9)


def test_differences_to_the_plain_network_are_paired_by_seed(report, made):
    found = read(report, "risk-difference")
    curves = {m: np.array([row.curve for row in made.rows if row.method == m]) for m in ("mean", "cvp")}
    gaps = curves["cvp"] - curves["mean"]
    ours = found[found["method"] == "cvp"]
    np.testing.assert_allclose(ours["risk"], gaps.mean(0), rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(ours["risk_sem"], gaps.std(0, ddof=1) / math.sqrt(3), rtol=1e-5, atol=1e-9)
    assert "mean" not in set(found["method"])


def test_the_bins_of_a_reliability_diagram_hold_all_examples(report):
    found = read(report, "reliability")
    np.testing.assert_allclose(found.groupby("method")["share"].sum(), 1, rtol=1e-6)
    assert set(found["method"]) == {"mean", "mc-4", "mc-8", "streamlining", "cvp", "stubborn"}


def test_the_data_of_the_layer_figures(report, made):
    alphas = read(report, "scales")
    rows = [row for row in made.rows if row.scales]
    assert len(alphas) == sum(len(row.scales) for row in rows)
    head = alphas[alphas["path"] == "head"]
    np.testing.assert_allclose(head["alpha"], [row.scales["head"] for row in rows], rtol=1e-6)
    np.testing.assert_allclose(head["geometric_mean"], np.exp(np.log(head["alpha"]).mean()), rtol=1e-6)
    cvp = [row for row in made.rows if row.method == "cvp"]
    for figure, quantity in (("variance-ratio", "variance_ratio"), ("mean-error", "mean_error")):
        found = read(report, f"fidelity-{figure}").set_index(["method", "path"]).loc["cvp", "norm"]
        for name in (quantity, "plain_error"):
            expected = np.mean([next(e[name] for e in row.fidelity if e["path"] == "norm") for row in cvp])
            assert found[name] == pytest.approx(expected, rel=1e-6)


def points(*pairs):
    return pd.DataFrame(pairs, columns=["time", "value"], dtype=float)


def test_pareto_front_by_hand():
    given = points((1, 5), (2, 3), (2, 4), (3, 3), (4, 1), (0.5, 9))
    assert list(figures.pareto_front(given, higher=False).index) == [5, 0, 1, 4]
    assert list(figures.pareto_front(given, higher=True).index) == [5]


def test_methods_keep_their_colours_and_are_told_apart():
    methods = ["mean", "temperature", "mc-2", "mc-4", "mc-8", "mc-64", "streamlining", "cvp", "mine", "yours"]
    found = styles(methods)
    assert len({(style.role, style.marker, str(style.dashes)) for style in found.values()}) == len(methods)
    shown = styles([f"mc-{2**i}" for i in range(7)])
    assert len({shown[m] for m in ("mc-2", "mc-4", "mc-64")}) == 3
    assert found["cvp"] == styles(["cvp"])["cvp"]
    assert found["mc-64"].role == styles(["mc-64"])["mc-64"].role == "mc4"


def test_rows_without_numbers_give_no_figures():
    rows = [Row("d", m, 0, 4, {"accuracy": 0.5, "nll": math.inf}) for m in ("mean", "cvp")]
    look = styles(["mean", "cvp"])
    assert figures.pareto(Summary(rows), "d", NAMED["aurc"], look) is None  # no cost, no AURC
    assert figures.risk_coverage("d", {}, look) == []
    assert figures.reliability("d", {}, {}, look) is None
    assert layers.scales("d", {}, look) is None
    assert layers.fidelity("d", {}, look) == []


def test_fidelity_is_that_before_calibration_where_it_was_measured():
    entry = {"path": "x", "variance_ratio": 0.5, "mean_error": 0.1, "plain_error": 0.2}
    look = styles(["cvp"])
    stored, new = {("cvp", 0): [entry | {"variance_ratio": 2.0}]}, {("cvp", 1): [entry | {"calibrated": False}]}
    with drawing_style():
        (ratio, _), (old, _) = (layers.fidelity("d", runs, look) for runs in (stored | new, stored))
    assert ratio.title.endswith("before calibration")
    assert ratio.data["variance_ratio"].tolist() == [0.5]
    assert old.title.endswith("after calibration")
    assert old.data["variance_ratio"].tolist() == [2.0]


def test_a_deep_network_with_long_paths_is_drawn_small_enough():
    paths = [f"vision_model.encoder.layers.{i}.self_attention.projection" for i in range(200)]
    with drawing_style():
        drawing = layers.scales("d", {("cvp", 0): dict.fromkeys(paths, 2.0)}, styles(["cvp"]))
        width, height = drawing.figure.get_size_inches()
        labels = [label.get_text() for label in drawing.figure.axes[0].get_yticklabels()]
    assert height < 16
    assert width < 5
    assert max(map(len, labels)) <= 34
    assert 40 < len(labels) < 110


def test_drawing_leaves_the_users_settings_alone():
    mpl = pytest.importorskip("matplotlib")
    with mpl.rc_context({"font.size": 31.0}):
        with drawing_style():
            assert mpl.rcParams["font.size"] == 8.5
        assert mpl.rcParams["font.size"] == 31.0
