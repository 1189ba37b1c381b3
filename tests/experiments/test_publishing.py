import numpy as np
import pytest

from experiments.publishing import adopt, publish
from varprop.errors import ResultsError
from varprop.evaluation.results import Results, Row

pytestmark = pytest.mark.second


def test_a_published_copy_has_all_rows_and_few_scores(tmp_path):
    results = Results(tmp_path / "all")
    rng = np.random.default_rng(0)
    for method in ("mean", "cvp"):
        for seed in range(2):
            arrays = {"confidence": rng.random(4).astype(np.float32), "correctness": np.array([1.0, 0, 1, 1])}
            results.add(Row("d", method, seed, 4, {"accuracy": 0.5}), arrays)
    results.add_examples(np.zeros((5, 2, 2), np.uint8), ["zero"], row="d")
    results.keep("more", {"numbers": np.arange(3)})
    copy = publish(results, tmp_path / "copy", lambda row: row.key == ("d", "cvp", 0), thumbnails=3)
    assert copy.rows == results.rows
    (kept,) = [row for row in copy.rows if copy.scores(row)]
    ours, theirs = results.scores(kept), copy.scores(kept)
    assert kept.key == ("d", "cvp", 0)
    np.testing.assert_allclose(theirs["confidence"], ours["confidence"], atol=2**-17)
    np.testing.assert_array_equal(theirs["correctness"], ours["correctness"])
    assert copy.examples("d").images.shape == (3, 2, 2)
    assert copy.kept("more")["numbers"].tolist() == [0, 1, 2]
    for folder in ("all", "copy"):
        with pytest.raises(ResultsError, match="holds results already; choose an empty folder"):
            publish(results, tmp_path / folder, bool)


def test_rows_of_another_folder_are_adopted_without_their_scores(tmp_path, experiments):
    results, others = Results(tmp_path / "new"), Results(tmp_path / "all")
    results.add(Row("d", "cvp", 0, 2, {"accuracy": 0.5}), {"confidence": np.ones(2), "correctness": np.ones(2)})
    results.add_examples(np.zeros((200, 2, 2), np.uint8), ["zero"], row="d")
    others.add(Row("e", "cvp", 0, 2, {"accuracy": 0.6}))
    experiments("adopt", str(tmp_path / "new"), str(tmp_path / "all"))
    assert [row.row for row in others.rows] == ["e", "d"]
    assert others.scores(others.rows[1]) is None
    assert len(others.examples("d").images) == 120
    with pytest.raises(ResultsError, match="all has rows of d already"):
        adopt(results, tmp_path / "all")
