"""Every rule: against samples, in float32 against float64, without variance, in shape and dtype, in its gradients."""

import pytest
import torch

import varprop as vp
from tests.rules.cases import CASES, PAIRS, Case
from varprop.moments import Moments, is_random

aten = torch.ops.aten

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
each_rule = pytest.mark.parametrize(("rules", "case"), PAIRS, ids=lambda value: value.name)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pairs(case: Case, rules: vp.RuleSet):
    """Each random result of the rule beside the op's own at the mean."""
    got, own = case.apply(rules), case.at_mean().run()
    assert len(got) == len(own)
    return [(result, reference) for result, reference in zip(got, own, strict=True) if is_random(result)]


@pytest.mark.parametrize("rules", [vp.CVP, vp.STREAMLINING], ids=lambda rules: rules.name)
def test_every_op_has_a_case(rules):
    assert {case.op for case in CASES} == set(rules)


def test_cases_have_names_of_their_own():
    names = [case.name for case in CASES]
    assert sorted(names) == sorted(set(names))


@each_case
def test_against_samples(case):
    vp.testing.check_rule(case.op, case.args, case.kwargs, samples=case.samples, bias=case.bias)


@each_rule
def test_float32_against_float64(rules, case):
    """From the same numbers, over six orders of magnitude of means and ten of variances."""
    for mean in case.mean_scales:
        for var in case.var_scales:
            single = case.scaled(mean, var).to(torch.float32)
            compared = zip(single.apply(rules), single.to(torch.float64).apply(rules), strict=True)
            for got, exact in ((got, exact) for got, exact in compared if is_random(got)):
                assert_close_in_single_precision(got, exact, f"means x {mean:g}, variances x {var:g}")


def assert_close_in_single_precision(got: Moments, exact: Moments, where: str) -> None:
    # Sums over up to 256 entries lose up to 256 eps = 1.5e-5 of their largest term.
    mean_scale, var_scale = float(exact.mean.abs().max() + exact.std.max()), float(exact.var.max())
    said = {"check_dtype": False, "msg": lambda text: f"{where}\n{text}"}
    torch.testing.assert_close(got.mean, exact.mean, rtol=0, atol=2e-5 * mean_scale, **said)
    # The variance is a sum of positive terms, or a difference that loses at most two digits of the largest entry's.
    tiny = torch.finfo(torch.float32).tiny
    torch.testing.assert_close(got.var, exact.var, rtol=1e-4, atol=1e-6 * var_scale + tiny, **said)
    assert (got.var >= 0).all(), where


@each_rule
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_zero_variance_is_the_op_itself(rules, case, dtype):
    # In float64 a variance of 0 is raised to 1e-16 before its root is taken, which moves a kink by 1e-8/√(2π).
    tolerance = {torch.float64: 4e-9, torch.float32: 4e-6}[dtype]
    for got, own in pairs(case.scaled(var=0.0).to(dtype), rules):
        scale = max(1.0, float(own.abs().max()))
        torch.testing.assert_close(got.mean, own, rtol=0, atol=tolerance * scale)
        assert (got.var == 0).all()


@each_rule
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_shape_and_dtype_are_the_ops(rules, case, dtype):
    if dtype == torch.bfloat16 and "avg_pool3d" in case.name:
        pytest.skip("torch itself has no such kernel")
    for got, own in pairs(case.to(dtype), rules):
        assert got.mean.isfinite().all()
        assert (got.var >= 0).all()
        assert got.mean.shape == got.var.shape == own.shape
        assert got.mean.dtype == got.var.dtype == own.dtype


@each_rule
@pytest.mark.parametrize("var", [1.0, 0.0])
def test_gradients_are_finite(rules, case, var):
    for dtype in (torch.float64, torch.float32):
        tracked = case.scaled(var=var).to(dtype).change(lambda leaf: _tracked(leaf) if is_random(leaf) else leaf)
        outputs = [part for got in tracked.apply(rules) if is_random(got) for part in got if part.requires_grad]
        if not outputs:
            continue
        inputs = [part for x in tracked.random() for part in x]
        gradients = torch.autograd.grad([part.sum() for part in outputs], inputs, allow_unused=True)
        used = [gradient for gradient in gradients if gradient is not None]
        assert used
        assert all(gradient.isfinite().all() for gradient in used)


def _tracked(x: Moments) -> Moments:
    return Moments(*(part.clone().requires_grad_() for part in x))


@each_rule
def test_gradients_are_right(rules, case):
    """Against differences, in float64 and off the kinks."""
    inputs = [part.clone().requires_grad_() for x in case.random() for part in x]

    def function(*parts):
        rest = iter(parts)
        moved = case.change(lambda leaf: Moments(next(rest), next(rest)) if is_random(leaf) else leaf)
        return tuple(part for got in moved.apply(rules) if is_random(got) for part in got if part.requires_grad)

    if function(*inputs):
        assert torch.autograd.gradcheck(function, inputs, fast_mode=True, atol=1e-6, rtol=1e-4)


@each_case
def test_streamlining_leaves_means_alone(case):
    for got, own in pairs(case, vp.STREAMLINING):
        scale = max(1.0, float(own.abs().max()))
        torch.testing.assert_close(got.mean, own, rtol=0, atol=1e-12 * scale)


@each_case
def test_streamlining_is_the_limit_of_small_variance(case):
    """Where the op is smooth, and cases are off its kinks, both rule sets have the same slope."""
    small = case.scaled(var=1e-10)
    for got, exact in zip(small.apply(vp.STREAMLINING), small.apply(vp.CVP), strict=True):
        assert is_random(got) == is_random(exact)
        if is_random(got):
            # The next term is of relative order √v = 1e-5, times a curvature.
            error = (got.var - exact.var).abs()
            assert (error <= 1e-4 * exact.var + 1e-6 * exact.var.max()).all(), (got.var, exact.var)
