"""What a results folder keeps besides rows and scores, and copies of it that are small."""

import dataclasses

import numpy as np
import pytest

from varprop.errors import ResultsError
from varprop.evaluation.curves import percentiles
from varprop.report import Norms, Results, Row, read_results

CURVE = tuple(i / 200 for i in range(1, 101))


def scores(size=4):
    return {"confidence": np.linspace(0.5, 1, size), "correctness": np.ones(size)}


def norms(title="Σ ~ U(0, 5)", size=20):
    rng = np.random.default_rng(0)
    points = {name: rng.random((size, 3)).astype(np.float32) for name in ("mean", "var")}
    rmse = {"CVP": {"mean": 0.01, "var": 0.02}, "Streamlining": {"mean": 0.1, "var": 0.2}}
    return Norms(title, 4000, 12288, rmse, points)


def test_a_curve_comes_back_as_it_was(tmp_path):
    row = Row("d", "CVP", 0, 4, {"accuracy": 0.5}, curve=CURVE)
    Results(tmp_path).add(row)
    assert read_results(tmp_path).rows == (row,)
    assert len((tmp_path / "rows.jsonl").read_text()) < 1500


@pytest.mark.parametrize("curve", [CURVE[1:], (2.0,) * 100, ("0.1",) * 100, 0.5])
def test_what_is_no_curve_is_refused(curve):
    with pytest.raises(ResultsError, match=r"curve must be 100 numbers in \[0, 1\], or None"):
        Row("d", "CVP", 0, 4, {"accuracy": 0.5}, curve=curve)


def test_norms_come_back_as_they_were(tmp_path):
    results = Results(tmp_path)
    assert results.norms("synthetic") == ()
    given = [norms(), norms("Σ ~ U(0, 10)", 5)]
    results.add_norms("synthetic", given)
    found = results.norms("synthetic")
    assert [n.title for n in found] == [n.title for n in given]
    for ours, theirs in zip(given, found, strict=True):
        assert (ours.samples, ours.activations, ours.rmse) == (theirs.samples, theirs.activations, theirs.rmse)
        for name, points in ours.points.items():
            np.testing.assert_array_equal(theirs.points[name], points)
    assert results.norms("other") == ()
    assert results.rows == ()


def test_norms_that_cannot_be_right_are_refused(tmp_path):
    good = norms()
    for points in ({"mean": good.points["mean"]}, {k: v[:, :2] for k, v in good.points.items()}, {}):
        with pytest.raises(ResultsError, match="must be"):
            dataclasses.replace(good, points=points)
    with pytest.raises(ResultsError, match="finite"):
        dataclasses.replace(good, points={k: v * np.nan for k, v in good.points.items()})
    with pytest.raises(ResultsError, match="give at least one"):
        Results(tmp_path).add_norms("synthetic", [])
    np.savez(tmp_path / "norms-d.npz", facts=np.array("[{}]"))
    with pytest.raises(ResultsError, match="holds no comparison of norms"):
        Results(tmp_path).norms("d")


def test_a_published_copy_has_all_rows_and_few_scores(tmp_path):
    results = Results(tmp_path / "all")
    for method in ("mean", "CVP"):
        for seed in range(2):
            curve = percentiles(*scores().values())
            results.add(Row("d", method, seed, 4, {"accuracy": 0.5}, curve=curve), scores())
    results.add_examples(np.zeros((1, 2, 2), np.uint8), ["zero"], row="d")
    results.add_norms("d", [norms()])
    copy = results.publish(tmp_path / "copy", lambda row: row.method == "CVP" and row.seed == 0)
    assert [row.key for row in copy.rows] == [row.key for row in results.rows]
    kept = [row for row in copy.rows if row.scores]
    assert [row.key for row in kept] == [("d", "CVP", 0)]
    np.testing.assert_array_equal(copy.scores(kept[0])["confidence"], scores()["confidence"])
    assert [path.name for path in (tmp_path / "copy" / "scores").iterdir()] == ["d-CVP-0.npz"]
    assert copy.examples("d").names == ("zero",)
    assert copy.norms("d")[0].title == norms().title
    assert all(row.curve == results.rows[0].curve for row in copy.rows)
    assert len(results.scores(results.rows[0])["confidence"]) == 4  # the original is as it was
    for folder in ("all", "copy"):
        with pytest.raises(ResultsError, match="holds results already; choose an empty folder"):
            results.publish(tmp_path / folder, bool)
