import dataclasses
import math
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest

from varprop.errors import ResultsError
from varprop.evaluation.results import FILE, FORMAT, Results, Row, read_results

ROW = Row("digits", "cvp", 0, 4, {"accuracy": 0.75, "nll": 0.5})
CURVE = tuple(i / 200 for i in range(1, 101))


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


def test_a_row_comes_back_as_it_was(tmp_path):
    entry = {"path": "a.b", "module": "Linear", "variance_ratio": 1.5, "correlation": math.inf}
    row = Row(
        row="digits",
        method="mc-8",
        seed=3,
        examples=4,
        metrics={"nll": math.inf, "c@0.5": 0.1 + 0.2, "accuracy": 1 / 3},
        cost={"plain": 2.0, "sample": -math.inf},
        scales={"head": 1e-12},
        fidelity=(entry,),
        curve=CURVE,
        config={"layers": [1, 2], "name": "ViT"},
        versions={"torch": "2.13"},
        revision="abc",
        time="2026-11-15T09:00:00+00:00",
    )
    assert Results(tmp_path).add(row) == row
    assert read_results(tmp_path).rows == (row,)
    Results(tmp_path).add(dataclasses.replace(ROW, metrics={"nll": math.nan}))
    assert math.isnan(Results(tmp_path).rows[1].metrics["nll"])


def test_scores_come_back_as_they_were(tmp_path):
    results = Results(tmp_path)
    assert results.scores(ROW) is None
    found = results.scores(results.add(ROW, scores()))
    assert set(found) == set(scores())
    for name, value in scores().items():
        np.testing.assert_array_equal(found[name], value)
        assert found[name].dtype == value.dtype
    results.add(ROW)
    assert results.scores(ROW) is None


def test_writing_a_row_again_replaces_it_in_place(tmp_path):
    results = Results(tmp_path)
    for seed in range(3):
        results.add(dataclasses.replace(ROW, seed=seed), scores())
    again = dataclasses.replace(ROW, seed=1, metrics={"accuracy": 1.0})
    results.add(again, scores(correctness=np.array([1, 1, 1, 0.0])))
    assert [row.seed for row in results.rows] == [0, 1, 2]
    assert results.rows[1].metrics == {"accuracy": 1.0}
    assert results.scores(results.rows[1])["correctness"].sum() == 3
    assert results.scores(results.rows[0])["correctness"].sum() == 4


WRITER = """
import sys
import numpy as np
from varprop.evaluation.results import Results, Row
results = Results(sys.argv[1])
for seed in range(int(sys.argv[3])):
    scores = {"confidence": np.random.random(50_000), "correctness": np.ones(50_000)}
    results.add(Row("digits", sys.argv[2], seed, 50_000, {"accuracy": 0.5}), scores)
    print(seed, flush=True)
"""


def writer(folder, method, count):
    command = [sys.executable, "-c", WRITER, str(folder), method, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.second
def test_after_a_kill_every_row_that_is_there_is_whole(tmp_path):
    with writer(tmp_path, "cvp", 10_000) as process:
        assert process.stdout.readline() == "0\n"
        time.sleep(0.3)
        process.kill()
        written = 1 + len(process.stdout.readlines())
    results = read_results(tmp_path)
    assert len(results.rows) in (written, written + 1)  # the last one may not have been told
    assert all(len(results.scores(row)["confidence"]) == 50_000 for row in results.rows)
    results.add(ROW, scores())
    assert ROW in results.rows


@pytest.mark.second
def test_processes_can_share_a_folder(tmp_path):
    running = [writer(tmp_path, method, 5) for method in ("a", "b")]
    for process in running:
        process.communicate()
    assert [process.returncode for process in running] == [0, 0]
    assert {row.key for row in read_results(tmp_path).rows} == {("digits", m, seed) for m in "ab" for seed in range(5)}


def test_what_is_no_results_file_is_refused_and_left_alone(tmp_path):
    file = tmp_path / FILE
    file.write_text("nonsense " * 1000)
    for use in (lambda: read_results(tmp_path), lambda: Results(tmp_path).add(ROW)):
        with pytest.raises(ResultsError, match="cannot (read|write to) .*file is not a database"):
            use()
    assert file.read_text() == "nonsense " * 1000
    file.unlink()
    Results(tmp_path).add(ROW)
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    for use in (lambda: read_results(tmp_path), lambda: Results(tmp_path).add(ROW)):
        with pytest.raises(ResultsError, match=f"has format 99, this varprop reads format {FORMAT}; use the varprop"):
            use()


def test_missing_and_unwritable_folders(tmp_path):
    with pytest.raises(ResultsError, match="there is no folder"):
        read_results(tmp_path / "nowhere")
    with pytest.raises(ResultsError, match="holds no results"):
        read_results(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ResultsError, match="cannot write to .*choose another folder"):
        Results(tmp_path / "file" / "folder").add(ROW)
    (tmp_path / FILE).mkdir()
    with pytest.raises(ResultsError, match="cannot read"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row": ""}, "row must be a name"),
        ({"row": "a\nb"}, "row must be a name"),
        ({"method": "m" * 201}, "method must be a name of at most 200 printable characters"),
        ({"seed": 2**63}, "seed must be a whole number"),
        ({"seed": True}, "seed must be a whole number"),
        ({"examples": 0}, "above 0"),
        ({"metrics": {}}, "metrics must be"),
        ({"metrics": {"acuracy": 1.0}}, "metrics must be numbers for accuracy, aurc"),
        ({"metrics": {"nll": "1"}}, "metrics must be"),
        ({"cost": {"seconds": 1.0}}, "plain and sample"),
        ({"curve": CURVE[1:]}, r"curve must be 100 numbers in \[0, 1\], or None"),
        ({"curve": (2.0,) * 100}, "curve must be"),
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


def test_damaged_or_pickled_scores_are_named_and_not_loaded(tmp_path):
    results = Results(tmp_path)
    results.add(ROW, scores())
    pickled = tmp_path / "pickled.npz"
    np.savez(pickled, confidence=np.array([object()] * 4), correctness=np.ones(4))
    for damaged in (b"", b"not a zip file", pickled.read_bytes()):
        with sqlite3.connect(results.file) as db:
            db.execute("UPDATE rows SET scores = ?", (damaged,))
        db.close()
        with pytest.raises(ResultsError, match="scores of .* are no whole npz file"):
            results.scores(ROW)


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
    results.add_examples(images, ["zero", "ähm"], row="digits")
    found = results.examples("digits")
    np.testing.assert_array_equal(found.images, images)
    assert found.names == ("zero", "ähm")
    assert results.examples("other") is None
    results.add_examples(["good", "schön"], row="words")
    assert results.examples("words").texts == ("good", "schön")
    assert len(results.examples("words").first(1)) == 1
    with pytest.raises(ResultsError, match="images or texts"):
        results.add_examples([], row="words")
    for wrong in (images.astype(float), images[0], np.zeros((1, 2, 2, 4), np.uint8)):
        with pytest.raises(ResultsError, match="must be uint8"):
            results.add_examples(wrong, row="digits")
