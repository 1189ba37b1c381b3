"""Every rule: against an exact reference or samples, in float32 against float64, without variance, in its gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import varprop as vp
from tests.rules.cases import CASES, PAIRS, Case, Kind
from varprop.moments import Moments, is_random
from varprop.rules import functions
from varprop.rules.ruleset import op_name

aten = torch.ops.aten


def each(*kinds: Kind, pairs=PAIRS):
    """Every case of these kinds, with every rule set that has a rule of its own for it."""
    chosen = [(rules, case) for rules, case in pairs if case.kind in kinds]
    return pytest.mark.parametrize(
        ("rules", "case"), chosen, ids=[f"{rules.name}-{case.name}" for rules, case in chosen]
    )


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pairs(case: Case, rules: vp.RuleSet):
    """Each random result of the rule beside the op's own at the mean; there must be one."""
    got, own = case.apply(rules), case.at_mean().run()
    assert len(got) == len(own)
    found = [(result, reference) for result, reference in zip(got, own, strict=True) if is_random(result)]
    assert found
    return found


def assert_form(case: Case, rules: vp.RuleSet, dtype: torch.dtype) -> None:
    """Shapes and dtypes are the op's, values possible."""
    for got, own in pairs(case.to(dtype), rules):
        assert got.mean.isfinite().all()
        assert (got.var >= 0).all()
        assert got.mean.shape == got.var.shape == own.shape
        assert got.mean.dtype == got.var.dtype == own.dtype


def assert_zero_variance_is_the_op_itself(case: Case, rules: vp.RuleSet, dtype: torch.dtype) -> None:
    # In float64 a variance of 0 is raised to 1e-16 before its root is taken, which moves a kink by 1e-8/√(2π).
    tolerance = {torch.float64: 4e-9, torch.float32: 4e-6}[dtype]
    for got, own in pairs(case.scaled(var=0.0).to(dtype), rules):
        scale = max(1.0, float(own.abs().max()))
        torch.testing.assert_close(got.mean, own, rtol=0, atol=tolerance * scale)
        assert (got.var == 0).all()


def has_bfloat16(case: Case) -> bool:
    """Torch itself has some kernels for wider types only, and no complex numbers of two halves."""
    return not case.complex_args and not any(
        name in case.name for name in ("avg_pool3d", "cdist", "grid_sampler", "_fft", "complex", "_aa")
    )


def assert_close_in_single_precision(got: Moments, exact: Moments, where: str, lost: float = 0.0) -> None:
    """``lost`` is a variance too small to matter, as that of a far tail."""
    # Sums over up to 256 entries lose up to 256 eps = 1.5e-5 of their largest term.
    mean_scale, var_scale = float(exact.mean.abs().max() + exact.std.max()), float(exact.var.max())
    said = {"check_dtype": False, "msg": lambda text: f"{where}\n{text}"}
    torch.testing.assert_close(got.mean, exact.mean, rtol=0, atol=2e-5 * mean_scale, **said)
    # The variance is a sum of positive terms, or a difference that loses at most two digits of the largest entry's.
    tiny = torch.finfo(torch.float32).tiny
    torch.testing.assert_close(got.var, exact.var, rtol=1e-4, atol=1e-6 * var_scale + lost + tiny, **said)
    assert (got.var >= 0).all(), where


def compare_precisions(case: Case, rules: vp.RuleSet, mean: float, var: float) -> None:
    single = case.scaled(mean, var).to(torch.float32)
    for got, exact in zip(single.apply(rules), single.to(torch.float64).apply(rules), strict=True):
        if is_random(got):
            lost = 1e-12 * max(float(x.var.max()) for x in single.random())
            assert_close_in_single_precision(got, exact, f"means x {mean:g}, variances x {var:g}", lost)


@pytest.mark.parametrize("rules", [vp.CVP, vp.STREAMLINING], ids=lambda rules: rules.name)
def test_every_op_has_a_case(rules):
    assert {case.op for case in CASES} == set(rules)


def test_cases_have_names_of_their_own():
    names = [case.name for case in CASES]
    assert sorted(names) == sorted(set(names))


@each(Kind.CERTAIN)
def test_a_result_without_variance_is_the_ops_own(rules, case):
    for got, own in zip(case.apply(rules), case.at_mean().run(), strict=True):
        assert not is_random(got)
        torch.testing.assert_close(got, own, rtol=0, atol=0, equal_nan=True)


def exact_variances(case: Case, wanted: list[int]) -> list[Tensor]:
    """Of the op's own results at the places ``wanted``, which are affine in each random argument: by differences."""

    def function(*values: Tensor) -> tuple[Tensor, ...]:
        rest = iter(values)
        results = case.change(lambda leaf: next(rest) if is_random(leaf) else leaf).run()
        return tuple(results[place] for place in wanted)

    return list(_variance(function, case.random()))


def _variance(function: Callable[..., tuple[Tensor, ...]], blocks: list[Moments]) -> tuple[Tensor, ...]:
    """Var[f(A, …)] = Var[f(μ_A, …)] + Σ_i v_i (E[∂f/∂A_i]² + Var[∂f/∂A_i]), blocks independent, f affine in each."""
    if not blocks:
        return tuple(torch.zeros_like(part) for part in function())
    first, *rest = blocks
    size = first.mean.numel()

    def contribution(unit: Tensor) -> tuple[Tensor, ...]:
        def slope(*values: Tensor) -> tuple[Tensor, ...]:
            ends = (function(first.mean + sign * unit, *values) for sign in (0.5, -0.5))
            return tuple(after - before for after, before in zip(*ends, strict=True))

        at_mean = slope(*(block.mean for block in rest))
        return tuple(a * a + b for a, b in zip(at_mean, _variance(slope, rest), strict=True))

    units = torch.eye(size, dtype=torch.float64).reshape(size, *first.mean.shape)
    squares = torch.vmap(contribution)(units)
    of_rest = _variance(lambda *values: function(first.mean, *values), rest)
    return tuple(a + torch.tensordot(first.var.flatten(), b, 1) for a, b in zip(of_rest, squares, strict=True))


@each(Kind.AFFINE)
def test_what_is_affine_is_exact(rules, case):
    places = [place for place, got in enumerate(case.apply(rules)) if is_random(got)]
    for (got, own), var in zip(pairs(case, rules), exact_variances(case, places), strict=True):
        torch.testing.assert_close(got.mean, own, rtol=0, atol=1e-13 * max(1.0, float(own.abs().max())))
        torch.testing.assert_close(got.var, var, rtol=1e-12, atol=1e-12 * float(var.max()))
    for var in (1e-8, 1.0):
        compare_precisions(case, rules, 1.0, var)
    assert_zero_variance_is_the_op_itself(case, rules, torch.float64)
    assert_form(case, rules, torch.bfloat16 if has_bfloat16(case) else torch.float32)


@each(Kind.CURVED, pairs=[(vp.CVP, case) for case in CASES if not case.complex_args])
def test_against_samples(rules, case):
    checks = vp.testing.check_rule(case.op, case.args, case.kwargs, rules=rules, samples=case.samples, bias=case.bias)
    assert checks


@pytest.mark.parametrize("rules", [vp.CVP, vp.STREAMLINING], ids=lambda rules: rules.name)
def test_complex_lengths_and_angles_are_those_of_pairs(rules):
    z = Moments(torch.randn(5, 2), torch.rand(5, 2))
    number = Moments(*map(torch.view_as_complex, z))
    real, imag = (Moments(z.mean[:, i], z.var[:, i]) for i in (0, 1))
    for got, expected in (
        (rules[functions.modulus](number), rules[aten.linalg_vector_norm.default](z, 2, [1])),
        (rules[functions.argument](number), rules[aten.atan2.default](imag, real)),
    ):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


@each(Kind.CURVED)
def test_float32_against_float64(rules, case):
    """From the same numbers, over six orders of magnitude of means and ten of variances."""
    for mean in case.mean_scales:
        for var in case.var_scales:
            compare_precisions(case, rules, mean, var)


class Dtypes(TorchDispatchMode):
    """Of all tensors that are made while it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.made: set[torch.dtype] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.made |= {leaf.dtype for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)}
        return result


def test_no_rule_needs_float64():
    """MPS has none, and on most GPUs it is slow."""
    wide = {torch.float64, torch.complex128}
    for rules, case in PAIRS:
        if wide & {arg for arg in (*case.args, *case.kwargs.values()) if isinstance(arg, torch.dtype)}:
            continue  # asked for
        for dtype in (torch.float32, torch.bfloat16) if has_bfloat16(case) else (torch.float32,):
            with Dtypes() as dtypes:
                case.to(dtype).apply(rules)
            assert not dtypes.made & wide, f"{rules.name} {case.name}"


def assert_close_in_half_precision(got: Moments, exact: Moments, where: str, ulps: float) -> None:
    """Within so many halves of a last digit of the largest entry."""
    scales = float(exact.mean.abs().max() + exact.std.max()), float(exact.var.max())
    for part, reference, scale in zip(got, exact, scales, strict=True):
        error = (part.float() - reference).abs().max()
        assert error <= ulps * 2**-8 * scale + torch.finfo(torch.float32).tiny, f"{where}: {error / (2**-8 * scale)}"


def test_bfloat16_against_float32():
    """From the same numbers: a few roundings, none of which is of a statistic."""
    for rules, case in PAIRS:
        if has_bfloat16(case):
            half = case.to(torch.bfloat16)
            for got, exact in zip(half.apply(rules), half.to(torch.float32).apply(rules), strict=True):
                if is_random(got):
                    assert_close_in_half_precision(got, exact, f"{rules.name} {case.name}", 5)


LONG = {
    "layer_norm": lambda x: (aten.layer_norm.default, x, [2048]),
    "rms_norm": lambda x: (aten.rms_norm.default, x, [2048]),
    "group_norm": lambda x: (aten.group_norm.default, x, 1),
    "unit_length": lambda x: (functions.unit_length, x, (-1,)),
    "var": lambda x: (aten.var.correction, x, [-1]),
    "logsumexp": lambda x: (aten.logsumexp.default, x, [-1]),
    "log_softmax": lambda x: (aten.log_softmax.int, x, -1),
    "sum": lambda x: (aten.sum.dim_IntList, x, [-1]),
    "mean": lambda x: (aten.mean.dim, x, [-1]),
    "pooling": lambda x: (aten.adaptive_avg_pool1d.default, x, [3]),
    "attention": lambda x: (aten.scaled_dot_product_attention.default, *[x.mean[..., :64] - 64] * 2, x),
    "linear": lambda x: (aten.linear.default, x, x),
}


@pytest.mark.parametrize("call", LONG.values(), ids=LONG)
def test_bfloat16_over_many_entries_far_from_0(call):
    """Statistics, scores and sums are those of float32: their rounding would be several times the result's spread."""
    generator = torch.Generator().manual_seed(0)
    x = Moments(64 + torch.randn(1, 4, 2048, generator=generator), 0.1 * torch.rand(1, 4, 2048, generator=generator))
    half = Moments(*(part[0].bfloat16() if "linear" in str(call(x)[0]) else part.bfloat16() for part in x))
    op, *args = call(half)
    wide = [Moments(*(part.float() for part in arg)) if is_random(arg) else arg for arg in args]
    wide = [arg.float() if isinstance(arg, torch.Tensor) else arg for arg in wide]
    assert_close_in_half_precision(vp.CVP[op](*args), vp.CVP[op](*wide), op_name(op), 2)


@each(Kind.CURVED)
def test_forms_and_zero_variance(rules, case):
    for dtype in (torch.float64, torch.float32):
        assert_zero_variance_is_the_op_itself(case, rules, dtype)
        assert_form(case, rules, dtype)
    if has_bfloat16(case):
        assert_form(case, rules, torch.bfloat16)


def _tracked(x: Moments) -> Moments:
    return Moments(*(part.clone().requires_grad_() for part in x))


@each(Kind.CURVED)
def test_gradients_are_finite_and_right(rules, case):
    """Right against differences, in float64 and off the kinks; finite without variance and in float32, too."""
    for dtype, var in ((torch.float64, 0.0), (torch.float32, 1.0), (torch.float32, 0.0)):
        tracked = case.scaled(var=var).to(dtype).change(lambda leaf: _tracked(leaf) if is_random(leaf) else leaf)
        outputs = [part for got in tracked.apply(rules) if is_random(got) for part in got if part.requires_grad]
        inputs = [part for x in tracked.random() for part in x]
        if outputs:  # a step has no slope under the Delta method
            gradients = torch.autograd.grad([part.sum() for part in outputs], inputs, allow_unused=True)
            used = [gradient for gradient in gradients if gradient is not None]
            assert used
            assert all(gradient.isfinite().all() for gradient in used)
        else:
            assert all(not part.requires_grad for got in tracked.apply(rules) for part in got)
    inputs = [part.clone().requires_grad_() for x in case.random() for part in x]

    def function(*parts):
        rest = iter(parts)
        moved = case.change(lambda leaf: Moments(next(rest), next(rest)) if is_random(leaf) else leaf)
        return tuple(part for got in moved.apply(rules) if is_random(got) for part in got if part.requires_grad)

    if function(*inputs):
        assert torch.autograd.gradcheck(function, inputs, fast_mode=True, atol=1e-6, rtol=1e-4)


@each(Kind.CURVED, pairs=[pair for pair in PAIRS if pair[0] is vp.STREAMLINING])
def test_streamlining_is_the_limit_of_small_variance_and_leaves_means_alone(rules, case):
    """Where the op is smooth, and cases are off its kinks, both rule sets have the same slope."""
    for got, own in pairs(case, rules):
        torch.testing.assert_close(got.mean, own, rtol=0, atol=1e-12 * max(1.0, float(own.abs().max())))
    small = case.scaled(var=1e-10)
    for got, exact in zip(small.apply(rules), small.apply(vp.CVP), strict=True):
        assert is_random(got) == is_random(exact)
        if is_random(got):
            # The next term is of relative order √v = 1e-5, times a curvature.
            error = (got.var - exact.var).abs()
            assert (error <= 1e-4 * exact.var + 1e-6 * exact.var.max()).all(), (got.var, exact.var)
