"""Intervals hold as often as they say, whatever the network and the noise are."""

import math

import pytest
import torch
from torch import nn

import varprop as vp
from varprop.errors import GuaranteeError, InputError
from varprop.prediction.conformal import conformal_reach


def regression(outputs=1, noise_std=1.0):
    torch.manual_seed(0)
    return vp.MeanNetwork(nn.Linear(2, outputs).eval(), link=vp.links.Gaussian(noise_std))


@pytest.mark.parametrize("kind", ["skewed", "rounded", "several outputs"])
@pytest.mark.parametrize(("examples", "level"), [(9, 0.9), (50, 0.8)])
def test_coverage(kind, examples, level):
    """At least the level, over draws of the examples; without ties at most 1/(n + 1) more."""
    predictor = regression(3 if kind == "several outputs" else 1)
    generator = torch.Generator().manual_seed(1)
    covered = []
    for _ in range(300):
        x = torch.randn(examples + 100, 2, generator=generator)
        noise = torch.randn(len(x), 3 if kind == "several outputs" else 1, generator=generator).exp() * x[:, :1]
        y = noise.mul(2).round() if kind == "rounded" else noise
        fitted = vp.Conformal(predictor).fit([(x[:examples], y[:examples])])
        low, high = fitted(x[examples:]).interval(level)
        covered.append(((low <= y[examples:]) & (y[examples:] <= high)).all(1).double().mean())
    share = torch.stack(covered)
    mean, error = float(share.mean()), float(share.std()) / math.sqrt(len(share))
    assert mean >= level - 3 * error
    if kind != "rounded":
        assert mean <= level + 1 / (examples + 1) + 3 * error


def test_the_rank_is_that_of_the_decimal_number():
    """100 · 0.07 is above 7 in floating point."""
    residuals = torch.arange(1.0, 100.0)
    assert [conformal_reach(residuals, level) for level in (0.07, 0.071, 0.99)] == [7, 8, 99]


def test_equal_residuals_are_inside():
    fitted = vp.Conformal(regression()).fit([(torch.zeros(20, 2), regression()(torch.zeros(20, 2)).mean + 1)])
    low, high = fitted(torch.zeros(1, 2)).interval(0.9)
    assert float(high - low) == pytest.approx(2)


def test_batches_make_no_difference_and_evaluate_takes_it():
    predictor, x = regression(), torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    y = predictor(x).mean + 3 * torch.randn(200, 1, generator=torch.Generator().manual_seed(1))
    fitted = vp.Conformal(predictor).fit([(x[:100], y[:100])])
    parts = vp.Conformal(predictor).fit(zip(x[:100].split(30), y[:100].split(30), strict=True))
    torch.testing.assert_close(fitted.residuals, parts.residuals)
    found, plain = (vp.evaluate(each, [(x[100:], y[100:])], progress=False).metrics for each in (fitted, predictor))
    assert plain["picp@95"] < 0.8 < 0.9 < found["picp@95"]
    assert found["rmse"] == plain["rmse"]


def test_what_is_refused():
    x = torch.zeros(8, 2)
    with pytest.raises(GuaranteeError, match="8 examples give no interval of level 0.9: give at least 9"):
        vp.Conformal(regression()).fit([(x, torch.zeros(8, 1))])(x).interval(0.9)
    with pytest.raises(GuaranteeError, match=r"fit\(batches\)"):
        vp.Conformal(regression())(x)
    with pytest.raises(InputError, match="need a regression"):
        vp.Conformal(vp.MeanNetwork(nn.Linear(2, 3).eval()))
    with pytest.raises(InputError, match=r"shape \[8\]"):
        vp.Conformal(regression()).fit([(x, torch.zeros(8))])
    with pytest.raises(InputError, match="NaN"):
        vp.Conformal(regression()).fit([(x, torch.full((8, 1), math.nan))])
