"""Labels: classes, scores of many answers, votes on one statement."""

import pytest
import torch

from experiments.data.examples import Scores, majority


@pytest.mark.parametrize(
    ("labels", "share"),
    [
        (torch.tensor([2, 0, 2, 1, 2]), 3 / 5),
        (Scores.of([{0: 1.0}, {1: 0.5, 2: 0.5}, {2: 0.75}, {}], 4), 1.25 / 4),
        (torch.tensor([[0.0], [0.2], [1.0]]), 1.8 / 3),
        (torch.tensor([[1.0], [0.8], [0.0]]), 1.8 / 3),
    ],
    ids=["classes", "scores", "mostly false", "mostly true"],
)
def test_how_right_the_most_common_answer_is(labels, share):
    assert majority(labels) == pytest.approx(share)
