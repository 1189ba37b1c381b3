"""``check_rule`` finds what is wrong with a rule, and says where."""

import doctest
import re

import pytest
import torch

import varprop as vp
from varprop import testing
from varprop.errors import RuleError
from varprop.moments import Moments

aten = torch.ops.aten

X = Moments(torch.tensor([[0.3, -1.0, 2.0], [0.0, 1.5, -0.4]]), torch.tensor([[1.0, 0.5, 0.2], [2.0, 0.1, 0.9]]))


def off(mean: float = 0.0, var: float = 1.0) -> vp.Rule:
    """ReLU's rule, made wrong: the mean by so many deviations, the variance by a factor."""

    @vp.rule(aten.relu.default)
    def wrong(x):
        y = vp.CVP[aten.relu.default](x)
        return Moments(y.mean + mean * y.std, var * y.var)

    return wrong


def test_the_example_in_the_docstring_runs():
    outcome = doctest.testmod(testing)
    assert (outcome.failed, outcome.attempted) == (0, 5)


def test_a_right_rule_passes():
    [check] = vp.testing.check_rule(aten.relu.default, [X], samples=100_000)
    assert check.predicted.mean.dtype == torch.float64
    torch.testing.assert_close(check.sampled.mean, check.predicted.mean, rtol=0, atol=5 * float(check.mean_error.max()))


@pytest.mark.parametrize("wrong", [{"var": 1.1}, {"var": 0.9}, {"mean": 0.05}, {"mean": -0.05}], ids=str)
def test_a_wrong_rule_fails(wrong):
    rules = off(**wrong)
    vp.testing.check_rule(aten.relu.default, [X], rules=off(), samples=100_000)
    what = "variance" if "var" in wrong else "mean"
    message = (
        rf"aten.relu.default: {what} is [\d.]+ at \(\d, \d\), but [\d.]+ ± [\d.]+ in samples \(5 standard errors\): "
        r"[\d.]+ times the tolerance; \d of 6 entries are off"
    )
    with pytest.raises(AssertionError, match=message):
        vp.testing.check_rule(aten.relu.default, [X], rules=rules, samples=100_000)


def test_bias_is_admitted_for_the_mean_and_the_variance():
    def check(bias):
        vp.testing.check_rule(aten.relu.default, [X], rules=off(mean=0.05, var=1.1), samples=100_000, bias=bias)

    check(0.1)
    check((0.05, 0.1))
    with pytest.raises(AssertionError, match=r"mean .*\(5 standard errors\)"):
        check((0.0, 0.1))
    with pytest.raises(AssertionError, match=r"variance .*\(5 standard errors and a bias of 0.01\)"):
        check((0.05, 0.01))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_rule_that_is_not_finite_fails(value):
    @vp.rule(aten.relu.default)
    def broken(x):
        y = vp.CVP[aten.relu.default](x)
        return Moments(y.mean, y.var.clone().fill_diagonal_(value))

    with pytest.raises(AssertionError, match=rf"variance is {value} at \(0, 0\).* 2 of 6 entries are off"):
        vp.testing.check_rule(aten.relu.default, [X], rules=broken, samples=100)


def test_variance_where_there_is_none_fails():
    @vp.rule(aten.constant_pad_nd.default)
    def pad(x, size):
        return Moments(*(torch.constant_pad_nd(part, size) + 1e-9 for part in x))

    with pytest.raises(AssertionError, match=r"mean is 1e-09 at \(0, 3\), but 0 ±"):
        vp.testing.check_rule(aten.constant_pad_nd.default, (X, [0, 1]), rules=pad, samples=100)


def test_wrong_shapes_fail():
    @vp.rule(aten.sum.dim_IntList)
    def total(x, dim):
        return Moments(x.mean.sum(dim), x.var.sum(dim, keepdim=True))

    with pytest.raises(
        AssertionError, match=r"mean \(2,\) and variance \(2, 1\) must have the shape \(2,\) of the op's"
    ):
        vp.testing.check_rule(aten.sum.dim_IntList, (X, [1]), rules=total)


def test_missing_results_fail():
    @vp.rule(aten.max.dim)
    def largest(x, dim):
        return vp.CVP[aten.max.dim](x, dim)[0]

    with pytest.raises(AssertionError, match="the rule returns 1 results, the op 2"):
        vp.testing.check_rule(aten.max.dim, (X, 1), rules=largest)


def test_a_result_without_variance_must_be_the_ops_own():
    @vp.rule(aten.sigmoid.default)
    def gate(x):
        return torch.sigmoid(x.mean + 1e-3)

    with pytest.raises(
        AssertionError, match="(?s)a result without variance must be the op's own at the mean.*Mismatch"
    ):
        vp.testing.check_rule(aten.sigmoid.default, [X], rules=gate)
    assert vp.testing.check_rule(aten.gt.Scalar, (X, 0.0)) == []


def test_several_results_are_checked_each():
    checks = vp.testing.check_rule(aten.unbind.int, [X])
    assert [check.predicted.mean.shape for check in checks] == [(3,), (3,)]


def test_random_arguments_may_be_in_lists_and_keywords():
    @vp.rule(torch.lerp)
    def lerp(start, *, end, weight):
        """(1 − w) x + w y. Exact."""
        return Moments(start.mean.lerp(end.mean, weight), (1 - weight) ** 2 * start.var + weight**2 * end.var)

    vp.testing.check_rule(torch.lerp, [X], {"end": X, "weight": 0.3}, rules=lerp)
    vp.testing.check_rule(aten.cat.default, ([X, X.mean],))


def test_an_op_that_vmap_cannot_batch_is_run_one_by_one():
    def largest_first(x):
        return x if float(x[0, 0]) > 0 else x + 1  # data-dependent: vmap refuses

    @vp.rule(largest_first)
    def shifted(x):
        """The mixture of x and x + 1. Exact."""
        p = torch.special.ndtr(-x.mean[0, 0] / x.std[0, 0])
        return Moments(x.mean + p, x.var + p * (1 - p))

    positive = Moments(X.mean + torch.tensor([[100.0], [0.0]]), X.var)  # p = 0: the rule is right there
    vp.testing.check_rule(largest_first, [positive], rules=shifted, samples=2_000)
    with pytest.raises(AssertionError, match=re.escape("at (0, 0)")):  # x[0, 0] is not independent of its own sign
        vp.testing.check_rule(largest_first, [X], rules=shifted, samples=20_000)


def test_many_chunks_agree_with_one(monkeypatch):
    [whole] = vp.testing.check_rule(aten.relu.default, [X], samples=1_000)
    monkeypatch.setattr(testing, "CHUNK", 6 * 64)
    [parts] = vp.testing.check_rule(aten.relu.default, [X], samples=1_000)
    # Other draws, in chunks of 64 and a rest: the same moments within their errors, and errors of the same size.
    difference = (whole.sampled.mean - parts.sampled.mean).abs()
    assert (difference <= 5 * (whole.mean_error**2 + parts.mean_error**2).sqrt()).all()
    torch.testing.assert_close(whole.var_error, parts.var_error, rtol=0.5, atol=0)


def test_samples_are_counted_right():
    x = Moments(torch.tensor(3.0), torch.tensor(4.0))
    [check] = vp.testing.check_rule(aten.neg.default, [x], samples=40_000)
    torch.testing.assert_close(float(check.mean_error), 2 / 200, rtol=0.05, atol=0)
    torch.testing.assert_close(float(check.var_error), 4 * 2**0.5 / 200, rtol=0.05, atol=0)


def test_the_seed_decides():
    def sampled(seed):
        return vp.testing.check_rule(aten.neg.default, [X], samples=100, seed=seed)[0].sampled.mean

    assert torch.equal(sampled(1), sampled(1))
    assert not torch.equal(sampled(1), sampled(2))


def test_what_cannot_be_checked_is_an_error():
    with pytest.raises(RuleError, match="has no rule for aten.special_exp2.default"):
        vp.testing.check_rule(aten.special_exp2.default, [X])
    with pytest.raises(RuleError, match="no argument is a Moments"):
        vp.testing.check_rule(aten.relu.default, [X.mean])
    with pytest.raises(RuleError, match="the rule declines these arguments"):
        vp.testing.check_rule(aten.dropout.default, (X, 0.5, True))
