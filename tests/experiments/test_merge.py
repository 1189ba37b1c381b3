import numpy as np
import pytest

from varprop.evaluation.results import Results, Row

pytestmark = pytest.mark.second


def test_rows_of_another_folder_are_added_without_their_scores(tmp_path, experiments, refused):
    results, others = Results(tmp_path / "new"), Results(tmp_path / "all")
    results.add(Row("d", "cvp", 0, 2, {"accuracy": 0.5}), {"confidence": np.ones(2), "correctness": np.ones(2)})
    results.add_examples(np.zeros((200, 2, 2), np.uint8), ["zero"], row="d")
    others.add(Row("e", "cvp", 0, 2, {"accuracy": 0.6}))
    experiments("merge", str(tmp_path / "new"), str(tmp_path / "all"))
    assert [row.row for row in others.rows] == ["e", "d"]
    assert others.scores(others.rows[1]) is None
    assert len(others.examples("d").images) == 120
    assert "all has rows of d already" in refused("merge", str(tmp_path / "new"), str(tmp_path / "all"))
