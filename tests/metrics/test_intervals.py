"""Scores of a regression and of decisions, beside SciPy's and scikit-learn's."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from sklearn.metrics import f1_score

from varprop import metrics
from varprop.errors import MetricError

G = torch.Generator().manual_seed(0)
MEAN, TARGET = torch.randn(2, 5, 4, generator=G, dtype=torch.float64)
VAR = torch.rand(5, 4, generator=G, dtype=torch.float64) * 3 + 0.01


def test_gaussian_nll():
    expected = -stats.norm.logpdf(TARGET, MEAN, VAR.sqrt()).mean()
    assert float(metrics.gaussian_nll(MEAN, VAR, TARGET)) == pytest.approx(expected, rel=1e-12)


def test_crps_is_the_integral_of_the_squared_difference():
    def of_one(mean, std, y):
        below = integrate.quad(lambda t: stats.norm.cdf(t, mean, std) ** 2, -np.inf, y)[0]
        return below + integrate.quad(lambda t: stats.norm.sf(t, mean, std) ** 2, y, np.inf)[0]

    triples = zip(MEAN.flatten().tolist(), VAR.sqrt().flatten().tolist(), TARGET.flatten().tolist(), strict=True)
    expected = np.mean([of_one(*each) for each in triples])
    assert float(metrics.crps(MEAN, VAR, TARGET)) == pytest.approx(expected, rel=1e-7)


def test_rmse_and_intervals():
    assert float(metrics.rmse(MEAN, TARGET)) == pytest.approx(np.sqrt(np.mean((MEAN - TARGET).numpy() ** 2)))
    low, high, y = torch.tensor([[0.0, 0, 0, 0], [1, 1, 2, 1], [0, 1, 1.5, 3]])
    assert float(metrics.picp(low, high, y)) == 0.75  # ends are inside
    assert float(metrics.mpiw(low, high)) == 1.25


def test_without_variance():
    mean, var, y = torch.tensor([0.0, 1.0]), torch.zeros(2), torch.tensor([0.0, 3.0])
    assert float(metrics.crps(mean, var, y)) == 1
    assert float(metrics.gaussian_nll(mean[1:], var[1:], y[1:])) == math.inf


@pytest.mark.parametrize("seed", range(3))
def test_f1_and_its_best_threshold(seed):
    generator = torch.Generator().manual_seed(seed)
    probs = torch.randint(0, 12, (60,), generator=generator) / 11  # with ties
    y = (torch.rand(60, generator=generator) < 0.3).long()
    best = max((f1_score(y, probs >= t), float(t)) for t in probs.unique())
    found = metrics.best_f1_threshold(probs, y)
    assert float(metrics.f1(probs >= found, y)) == pytest.approx(best[0])
    assert float(metrics.f1(probs >= 0.5, y)) == pytest.approx(f1_score(y, probs >= 0.5))


def test_a_label_that_nobody_has():
    assert metrics.best_f1_threshold(torch.rand(5), torch.zeros(5)) == 0.5
    assert float(metrics.f1(torch.zeros(5), torch.zeros(5))) == 1


def test_what_is_refused():
    with pytest.raises(MetricError, match=r"shapes differ: mean \[2\], target \[3\]"):
        metrics.rmse(torch.zeros(2), torch.zeros(3))
    with pytest.raises(MetricError, match="variance is negative"):
        metrics.crps(torch.zeros(2), -torch.ones(2), torch.zeros(2))
    with pytest.raises(MetricError, match=r"target\[1\] is nan"):
        metrics.rmse(torch.zeros(2), torch.tensor([0.0, math.nan]))
    with pytest.raises(MetricError, match="no examples"):
        metrics.mpiw(torch.zeros(0), torch.zeros(0))
    with pytest.raises(MetricError, match=r"0 or 1, but target\[0\] is 2"):
        metrics.f1(torch.zeros(1), torch.tensor([2]))
