import dataclasses
import json
import math
import subprocess
import sys

import numpy as np
import pytest

from varprop.errors import ResultsError, VarpropError
from varprop.report import Results, Row, read_results

ROW = Row("digits", "CVP", 0, 4, {"accuracy": 0.75, "nll": 0.5})


def scores(size=4, **changes):
    arrays = {
        "confidence": np.linspace(0.5, 1, size, dtype=np.float32),
        "correctness": np.ones(size),
        "label": np.arange(size),
        "target": np.arange(size),
        "held_out_confidence": np.array([0.5, 0.75]),
        "held_out_correctness": np.array([0.0, 1.0]),
    }
    return {name: value for name, value in (arrays | changes).items() if value is not None}


def seeded(count, method="CVP"):
    return [dataclasses.replace(ROW, seed=seed, method=method) for seed in range(count)]


def test_a_row_comes_back_as_it_was(tmp_path):
    entry = {"path": "a.b", "module": "Linear", "variance_ratio": 1.5, "correlation": math.inf}
    row = Row(
        row="digits",
        method="MC-8",
        seed=3,
        examples=4,
        metrics={"nll": math.inf, "c@0.5": 0.1 + 0.2, "accuracy": 1 / 3},
        cost={"plain": 2.0, "sample": -math.inf},
        scales={"head": 1e-12},
        fidelity=(entry,),
        config={"layers": [1, 2], "name": "ViT"},
        versions={"torch": "2.13"},
        revision="abc",
        time="2026-11-15T09:00:00+00:00",
    )
    assert Results(tmp_path).add(row) == row
    assert read_results(tmp_path).rows == (row,)


def test_lines_are_strict_json_with_the_documented_fields(tmp_path):
    Results(tmp_path).add(dataclasses.replace(ROW, metrics={"nll": math.nan}), scores())

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    found = json.loads((tmp_path / "rows.jsonl").read_text(), parse_constant=refuse)
    assert found["format"] == 1
    assert found["metrics"] == {"nll": "nan"}
    assert found["scores"] == "scores/digits-CVP-0.npz"
    assert set(found) == {"format"} | {field.name for field in dataclasses.fields(Row)}
    assert math.isnan(Results(tmp_path).rows[0].metrics["nll"])


def test_scores_come_back_as_they_were(tmp_path):
    row = Results(tmp_path).add(ROW, scores())
    found = Results(tmp_path).scores(row)
    assert set(found) == set(scores())
    for name, value in scores().items():
        np.testing.assert_array_equal(found[name], value)
        assert found[name].dtype == value.dtype
    assert Results(tmp_path).scores(ROW) is None


def test_writing_a_row_again_replaces_it_in_place(tmp_path):
    results = Results(tmp_path)
    for row in seeded(3):
        results.add(row, scores())
    again = dataclasses.replace(ROW, seed=1, metrics={"accuracy": 1.0})
    results.add(again, scores(correctness=np.array([1, 1, 1, 0.0])))
    assert [row.seed for row in results.rows] == [0, 1, 2]
    assert results.rows[1].metrics == {"accuracy": 1.0}
    assert results.scores(results.rows[1])["correctness"].sum() == 3
    assert results.scores(results.rows[0])["correctness"].sum() == 4
    assert results.has("digits", "CVP", 1)
    assert not results.has("digits", "CVP", 3)


def test_a_line_cut_short_anywhere_is_reported_skipped_and_repaired(tmp_path):
    for row in seeded(2):
        Results(tmp_path).add(row)
    file = tmp_path / "rows.jsonl"
    whole = file.read_bytes()
    start = whole.index(b"\n") + 1
    for end in range(start + 1, len(whole)):
        file.write_bytes(whole[:end])
        results = Results(tmp_path)
        complete = end == len(whole) - 1  # only the newline is missing
        assert results.rows == tuple(seeded(2 if complete else 1))
        assert len(results.problems) == (0 if complete else 1)
        assert complete or ("line 2" in results.problems[0] and "cut short" in results.problems[0])
        results.add(seeded(2)[1])
        assert results.rows == tuple(seeded(2))
        assert results.problems == ()


def test_a_first_line_cut_short_is_no_obstacle_to_starting_again(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"format": 1, "row": "dig')
    results = Results(tmp_path)
    assert results.rows == ()
    assert len(results.problems) == 1
    with pytest.raises(ResultsError, match="holds no results"):
        read_results(tmp_path)
    results.add(ROW)
    assert read_results(tmp_path).rows == (ROW,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense\n", "line 1 is not JSON"),
        ("nonsense", "line 1 is not JSON"),
        ("[1]\n", "not a result row"),
        ('{"format": 2, "row": "x"}\n', "has format 2, this varprop reads format 1"),
        ('{"format": 2, "row": "x"}', "has format 2"),
        ('{"format": 1, "row": "x"}\n', "lacks method, seed, examples, metrics"),
        (
            '{"format": 1, "row": "x", "method": "m", "seed": 0.5, "examples": 1, "metrics": {"nll": 1}}\n',
            "seed must be",
        ),
        ('{"format": 1, "row": \n{"format": 1}\n', "line 1 is not JSON"),
    ],
)
def test_what_is_no_results_file_is_refused_and_left_alone(tmp_path, text, message):
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(ResultsError, match=message) as error:
        read_results(tmp_path)
    assert "\n" not in str(error.value)
    assert isinstance(error.value, VarpropError)
    with pytest.raises(ResultsError, match=message):
        Results(tmp_path).add(ROW, scores())
    assert (tmp_path / "rows.jsonl").read_text() == text
    assert not (tmp_path / "scores").exists()


def test_missing_and_unwritable_folders(tmp_path):
    with pytest.raises(ResultsError, match="there is no folder"):
        read_results(tmp_path / "nowhere")
    with pytest.raises(ResultsError, match="holds no results"):
        read_results(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ResultsError, match="cannot write to .*choose another folder"):
        Results(tmp_path / "file" / "folder").add(ROW)
    (tmp_path / "rows.jsonl").mkdir()
    with pytest.raises(ResultsError, match="cannot read"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row": ""}, "row must be a name"),
        ({"seed": True}, "seed must be a whole number"),
        ({"examples": 0}, "above 0"),
        ({"metrics": {}}, "metrics must be"),
        ({"metrics": {"acuracy": 1.0}}, "metrics must be numbers for accuracy, aurc"),
        ({"metrics": {"nll": "1"}}, "metrics must be"),
        ({"cost": {"seconds": 1.0}}, "plain and sample"),
        ({"fidelity": [{"module": "Linear"}]}, "entries with a path"),
    ],
)
def test_rows_that_cannot_be_right_are_refused(changes, message):
    with pytest.raises(ResultsError, match=message):
        dataclasses.replace(ROW, **changes)


def test_a_config_that_json_cannot_hold_leaves_no_half_row(tmp_path):
    with pytest.raises(ResultsError, match="holds what JSON cannot"):
        Results(tmp_path).add(dataclasses.replace(ROW, config={"model": object()}))
    Results(tmp_path).add(dataclasses.replace(ROW, config={"lr": np.float32(0.5), "sizes": (np.int64(1),)}))
    assert Results(tmp_path).rows[0].config == {"lr": 0.5, "sizes": [1]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"confidence": None}, "lack confidence"),
        ({"correctness": np.ones(3)}, r"correctness has shape \[3\], not \[4\]"),
        ({"label": np.ones((4, 1))}, r"label has shape \[4, 1\]"),
        ({"correctness": np.full(4, 2.0)}, r"must lie in \[0, 1\]"),
        ({"confidence": np.full(4, np.nan)}, "finite"),
        ({"target": np.array(list("abcd"))}, "finite numbers"),
        ({"held_out_correctness": None}, "only one of"),
        ({"held_out_correctness": np.ones(3)}, r"held_out_correctness has shape \[3\], not \[2\]"),
    ],
)
def test_scores_that_cannot_be_right_are_refused(tmp_path, changes, message):
    with pytest.raises(ResultsError, match=message):
        Results(tmp_path).add(ROW, scores(**changes))
    assert Results(tmp_path).rows == ()


def test_damaged_scores_are_named(tmp_path):
    results = Results(tmp_path)
    row = results.add(ROW, scores())
    path = tmp_path / row.scores
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"not a zip file"):
        path.write_bytes(damaged)
        with pytest.raises(ResultsError, match=r"digits-CVP-0\.npz is not a whole npz file"):
            results.scores(row)
    path.unlink()
    with pytest.raises(ResultsError, match="is missing"):
        results.scores(row)


def test_pickled_scores_are_not_loaded(tmp_path):
    row = Results(tmp_path).add(ROW, scores())
    np.savez(tmp_path / row.scores, confidence=np.array([object()] * 4), correctness=np.ones(4))
    with pytest.raises(ResultsError, match="not a whole npz"):
        Results(tmp_path).scores(row)


def test_scores_stay_in_the_folder(tmp_path):
    results = Results(tmp_path / "results")
    results.add(dataclasses.replace(ROW, row="../../up", method="a/b"), scores())
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
    assert [path.name for path in (tmp_path / "results" / "scores").iterdir()] == ["_.._up-a_b-0.npz"]
    with pytest.raises(ResultsError, match="outside the folder"):
        results.scores(dataclasses.replace(ROW, scores="../elsewhere.npz"))


def test_names_that_look_alike_get_files_of_their_own(tmp_path):
    results = Results(tmp_path)
    alike = [("a", "b-c"), ("a-b", "c"), ("a", "b c"), ("a", "b_c"), ("A", "B-C")]
    for i, (row, method) in enumerate(alike):
        results.add(dataclasses.replace(ROW, row=row, method=method), scores(label=np.full(4, i)))
    assert [results.scores(row)["label"][0] for row in results.rows] == list(range(5))
    results.add(dataclasses.replace(ROW, row="a-b", method="c"), scores(label=np.full(4, 7)))
    assert [results.scores(row)["label"][0] for row in results.rows] == [0, 7, 2, 3, 4]


def test_bools_and_integers_become_numbers_to_compute_with(tmp_path):
    given = scores(correctness=np.array([True, False, True, True]), confidence=np.arange(4))
    found = Results(tmp_path).scores(Results(tmp_path).add(ROW, given))
    assert found["correctness"].dtype == found["confidence"].dtype == np.float64
    assert found["correctness"].tolist() == [1, 0, 1, 1]


def test_examples(tmp_path):
    results = Results(tmp_path)
    results.add(ROW)
    assert results.examples("digits") is None
    images = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    results.add_examples(images, ["zero", "ähm"])
    found = results.examples("digits")
    np.testing.assert_array_equal(found.images, images)
    assert found.names == ("zero", "ähm")
    # With a second experiment, one file for all could show the wrong images.
    results.add(dataclasses.replace(ROW, row="other"))
    assert results.examples("digits") is None
    results.add_examples(np.zeros((1, 2, 2, 3), np.uint8), row="other")
    assert results.examples("other").images.shape == (1, 2, 2, 3)
    for wrong in (images.astype(float), images[0], np.zeros((1, 2, 2, 4), np.uint8)):
        with pytest.raises(ResultsError, match="must be uint8"):
            results.add_examples(wrong)


def test_processes_can_share_a_folder(tmp_path):
    code = """
import sys
from varprop.report import Results, Row
for seed in range(20):
    Results(sys.argv[1]).add(Row("digits", sys.argv[2], seed, 4, {"accuracy": 0.5}, config={"long": "x" * 20000}))
"""
    running = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), method]) for method in ("a", "b")]
    assert [process.wait() for process in running] == [0, 0]
    results = read_results(tmp_path)
    assert {row.key for row in results.rows} == {("digits", m, seed) for m in "ab" for seed in range(20)}
    assert results.problems == ()
