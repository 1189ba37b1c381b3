import numpy as np
import pytest
import torch

from tests.evaluation.random_scores import random_scores
from varprop import metrics
from varprop.evaluation.curves import percentiles, reliability


def test_what_a_row_keeps_is_the_curve_at_each_percent():
    scores = random_scores(5, size=100)
    kept = percentiles(torch.from_numpy(scores["confidence"]), torch.from_numpy(scores["correctness"]))
    assert len(kept) == 100
    # With 100 examples, the mean over all sizes is the AURC, ties averaged.
    area = float(metrics.aurc(*(torch.from_numpy(scores[k]) for k in ("confidence", "correctness"))))
    assert np.mean(kept) == pytest.approx(area, abs=1e-6)
    assert kept[-1] == pytest.approx(1 - scores["correctness"].mean(), abs=1e-6)
    assert percentiles([0.5, 0.5], [1.0, 0.0]) == (0.5,) * 100


@pytest.mark.parametrize("soft", [False, True])
def test_bins_give_the_ece(soft):
    scores = [random_scores(seed, soft=soft) for seed in range(2)]
    found = reliability(scores)
    gaps = np.nan_to_num(abs(found.confidence - found.accuracy)) * found.share
    joined = [torch.from_numpy(np.concatenate([s[k] for s in scores])) for k in ("confidence", "correctness")]
    assert gaps.sum() == pytest.approx(float(metrics.ece(*joined)), abs=1e-9)
    assert found.share.sum() == pytest.approx(1)


def test_confidence_one_lies_in_the_last_bin():
    found = reliability([{"confidence": np.array([1.0, 0.0]), "correctness": np.array([1.0, 0.0])}])
    assert found.share.tolist() == [0.5] + [0] * 13 + [0.5]
