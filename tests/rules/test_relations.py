"""What rules owe to each other and to the maths: limits, symmetries, two ways of writing one function."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx

import varprop as vp
from tests.rules.cases import Source
from varprop.moments import Moments, is_random
from varprop.rules import functions

aten = torch.ops.aten
CVP, STREAMLINING = vp.CVP, vp.STREAMLINING
SOURCE = Source("relations")


def assert_equal(got: Moments, expected: Moments, rtol: float = 1e-12) -> None:
    """Equal up to the rounding of float64, relative to the largest entry."""
    for part, reference in zip(got, expected, strict=True):
        torch.testing.assert_close(part, reference, rtol=0, atol=rtol * max(1e-30, float(reference.abs().max())))


def apply(op, *args, rules=CVP, **kwargs):
    return rules[op](*args, **kwargs)


# --- LayerNorm, as the issue asks ----------------------------------------------------------------


@pytest.fixture(scope="module")
def layer_norm_samples() -> tuple[Moments, Moments]:
    """x with μ ~ N(0, 1), Σ ~ U(0, 5) in 768 dimensions, and the moments of 160,000 samples of its LayerNorm."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    size, chunk, chunks = 768, 4_000, 40
    x = Moments(torch.randn(size, generator=generator), 5 * torch.rand(size, generator=generator))
    total, squares = torch.zeros(2, size, dtype=torch.float64)
    for _ in range(chunks):
        y = torch.nn.functional.layer_norm(x.sample(chunk, generator), (size,))
        total += y.sum(0)
        squares += y.square().sum(0)  # y is of order 1, so float32 loses 1e-7 of it
    torch.set_num_threads(threads)
    count = chunk * chunks
    mean = total / count
    return x, Moments(mean, squares / count - mean * mean)


def relative_rmse(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).square().mean().sqrt() / expected.square().mean().sqrt())


def test_layer_norm_is_within_one_per_cent(layer_norm_samples):
    x, sampled = layer_norm_samples
    y = apply(aten.layer_norm.default, x, [768])
    assert relative_rmse(y.mean, sampled.mean) < 0.01
    assert relative_rmse(y.var, sampled.var) < 0.01


def test_linearised_layer_norm_overestimates_twofold(layer_norm_samples):
    x, sampled = layer_norm_samples
    y = apply(aten.layer_norm.default, x, [768], rules=STREAMLINING)
    assert float((y.var / sampled.var).min()) > 2


# --- attention -----------------------------------------------------------------------------------


Q, K, V = SOURCE.random(2, 3, 4, 5), SOURCE.random(2, 3, 6, 5), SOURCE.random(2, 3, 6, 5)
SDPA = aten.scaled_dot_product_attention.default


@pytest.mark.parametrize("rules", [CVP, STREAMLINING], ids=lambda rules: rules.name)
@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"attn_mask": SOURCE.random(4, 6)}], ids=["", "causal", "mask"]
)
def test_attention_takes_queries_keys_and_mask_at_their_means(rules, options):
    at_mean = {name: value.mean if is_random(value) else value for name, value in options.items()}
    fixed = apply(SDPA, Q.mean, K.mean, V, **at_mean, rules=rules)
    assert_equal(apply(SDPA, Q, K, V, **options, rules=rules), fixed, rtol=0.0)
    plain = apply(SDPA, Q, K, V.mean, **options, rules=rules)
    torch.testing.assert_close(plain, SDPA(Q.mean, K.mean, V.mean, **at_mean))


def test_attention_written_out_is_the_same():
    scores = apply(aten.matmul.default, Q, apply(aten.transpose.int, K, -2, -1))
    weights = apply(aten.softmax.int, apply(aten.div.Scalar, scores, math.sqrt(5)), -1)
    assert_equal(apply(aten.matmul.default, weights, V), apply(SDPA, Q, K, V))


def test_a_masked_row_is_certainly_zero():
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[2] = False
    y = apply(SDPA, Q, K, V, mask)
    assert (y.mean[..., 2, :] == 0).all()
    assert (y.var[..., 2, :] == 0).all()
    assert (y.var[..., 1, :] > 0).all()


# --- maxima --------------------------------------------------------------------------------------


means = st.floats(-1e3, 1e3)
variances = st.floats(1e-3, 1e3)  # 0 has tests of its own
gaussians = st.builds(lambda m, v: Moments(torch.tensor([m]).double(), torch.tensor([v]).double()), means, variances)


def maximum(x, y):
    return apply(aten.maximum.default, x, y)


def assert_near(got: Moments, expected: Moments, *inputs: Moments) -> None:
    """Equal up to rounding, relative to what went in; 1e-12 is also what raising variances by 1e-16 may change."""
    scale = max(float(x.mean.abs() + x.std) for x in inputs)
    torch.testing.assert_close(got.mean, expected.mean, rtol=0, atol=1e-12 * scale)
    torch.testing.assert_close(got.var, expected.var, rtol=0, atol=1e-12 * scale**2)


@given(gaussians, gaussians)
@settings(deadline=None, max_examples=50)
def test_maximum_is_symmetric_and_above_both(x, y):
    z = maximum(x, y)
    assert_near(maximum(y, x), z, x, y)
    assert z.mean >= torch.maximum(x.mean, y.mean)
    assert 0 <= z.var <= 1.0000001 * torch.maximum(x.var, y.var)


@given(gaussians, gaussians, means, st.floats(0.5, 100))
@settings(deadline=None, max_examples=50)
def test_maximum_commutes_with_shift_and_scale(x, y, shift, factor):
    def move(x: Moments) -> Moments:
        return Moments(factor * x.mean + shift, factor**2 * x.var)

    assert_near(
        maximum(move(x), move(y)), move(maximum(x, y)), move(x), move(y), Moments(x.mean * 0 + shift, x.var * 0)
    )


@given(gaussians, gaussians)
@settings(deadline=None, max_examples=50)
def test_minimum_and_maximum_add_up(x, y):
    """min + max = x + y, and E[max²] + E[min²] = E[x²] + E[y²]."""
    high, low = maximum(x, y), apply(aten.minimum.default, x, y)
    scale = float(sum(part.mean.abs() + part.std for part in (x, y)))
    torch.testing.assert_close(high.mean + low.mean, x.mean + y.mean, rtol=0, atol=1e-12 * scale)
    squares = [sum(z.mean**2 + z.var for z in pair) for pair in ((high, low), (x, y))]
    torch.testing.assert_close(*squares, rtol=0, atol=1e-12 * scale**2)


def test_maximum_with_zero_is_relu():
    x = Moments(torch.linspace(-6, 6, 25).double(), torch.rand(25, generator=SOURCE.generator).double())
    assert_equal(maximum(x, torch.zeros(25).double()), apply(aten.relu.default, x), rtol=1e-9)


@pytest.mark.parametrize("rules", [CVP, STREAMLINING], ids=lambda rules: rules.name)
def test_maxima_agree(rules):
    x = SOURCE.random(2, 3, 4, 2)
    largest = apply(aten.amax.default, x, [2, 3], True, rules=rules)
    pair = apply(aten.max.dim, x, -1, rules=rules)[0]
    assert_equal(pair, apply(aten.maximum.default, *apply(aten.unbind.int, x, -1), rules=rules))
    assert_equal(
        apply(aten.amin.default, apply(aten.neg.default, x), [2, 3], True, rules=rules),
        Moments(-largest.mean, largest.var),
    )


@pytest.mark.parametrize("size", [63, 64, 65, 131, 200])
def test_long_maxima_keep_every_entry_once(size):
    """One entry towers over the rest, wherever it is: the maximum is that entry."""
    for position in (0, size // 2, size - 2, size - 1):
        mean = torch.zeros(size).double()
        mean[position] = 100.0
        y = apply(aten.amax.default, Moments(mean, torch.linspace(1, 2, size).double()))
        assert_equal(y, Moments(mean[position], torch.linspace(1, 2, size).double()[position]))


@pytest.mark.parametrize("rules", [CVP, STREAMLINING], ids=lambda rules: rules.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_minus_infinity_never_wins(rules, dtype):
    mean = torch.tensor([-math.inf, 1.0, -math.inf, 2.0], dtype=dtype, requires_grad=True)
    var = torch.tensor([1.0, 1.0, 0.0, 0.5], dtype=dtype, requires_grad=True)
    y = apply(aten.amax.default, Moments(mean, var), rules=rules)
    expected = apply(aten.maximum.default, Moments(mean[1], var[1]), Moments(mean[3], var[3]), rules=rules)
    for part, reference in zip(y, expected, strict=True):
        torch.testing.assert_close(part, reference)
    gradients = torch.autograd.grad(y.mean + y.var, [mean, var])
    assert all(gradient.isfinite().all() for gradient in gradients)
    nothing = apply(aten.amax.default, Moments(mean[::2], var[::2]), rules=rules)
    assert nothing.mean == -math.inf


def test_nan_is_not_hidden_by_maxima():
    x = Moments(torch.tensor([1.0, math.nan]), torch.ones(2))
    assert apply(aten.amax.default, x).mean.isnan()
    assert maximum(Moments(x.mean[1], x.var[1]), Moments(x.mean[0], x.var[0])).mean.isnan()


@pytest.mark.parametrize("var", [(1.0, 2.0), (0.0, 0.0), (1.0, 0.0)], ids=str)
def test_gradients_of_the_maximum_are_right_at_a_tie(var):
    """By symmetry: each operand has half the slope of the mean."""
    x, y = (Moments(torch.zeros(()).double().requires_grad_(), torch.tensor(v).double()) for v in var)
    assert torch.autograd.grad(maximum(x, y).mean, [x.mean, y.mean]) == (0.5, 0.5)
    [slope] = torch.autograd.grad(maximum(x, y).var, [x.mean])
    torch.testing.assert_close(float(slope), (var[0] - var[1]) / math.sqrt(2 * math.pi * max(sum(var), 1e-16)))


# --- norms ---------------------------------------------------------------------------------------


X = SOURCE.random(2, 6, 4, 5)


@pytest.mark.parametrize("rules", [CVP, STREAMLINING], ids=lambda rules: rules.name)
def test_norms_agree(rules):
    over_all = apply(aten.layer_norm.default, X, [6, 4, 5], rules=rules)
    assert_equal(apply(aten.group_norm.default, X, 1, rules=rules), over_all)
    assert_equal(apply(functions.standardize, X, (1, 2, 3), 1e-5, rules=rules), over_all)
    by_channel = apply(aten.instance_norm.default, X, None, None, None, None, True, 0.1, 1e-5, False, rules=rules)
    assert_equal(apply(functions.standardize, X, (2, 3), 1e-5, rules=rules), by_channel)
    rms = apply(aten.rms_norm.default, X, [4, 5], None, 1e-6, rules=rules)
    assert_equal(apply(functions.rms_normalize, X, (2, 3), 1e-6, rules=rules), rms)


@pytest.mark.parametrize("rules", [CVP, STREAMLINING], ids=lambda rules: rules.name)
def test_layer_norm_ignores_shift_and_scale(rules):
    moved = Moments(3 * X.mean + 7, 9 * X.var)
    expected = apply(aten.layer_norm.default, X, [5], None, None, 0.0, rules=rules)
    assert_equal(apply(aten.layer_norm.default, moved, [5], None, None, 0.0, rules=rules), expected)


def test_normalising_one_entry_leaves_no_variance():
    y = apply(aten.layer_norm.default, SOURCE.random(3, 1), [1])
    assert (y.mean == 0).all()
    assert (y.var == 0).all()


def test_centred_entries_have_the_variance_of_the_linear_map():
    """x − x̄ is linear: with s² fixed by a huge ε, LayerNorm is the linear layer I − 1/D."""
    x, eps = SOURCE.random(2, 5), 1e12
    matrix = torch.eye(5).double() - 1 / 5
    expected = apply(aten.linear.default, x, matrix / math.sqrt(eps))
    assert_equal(apply(aten.layer_norm.default, x, [5], None, None, eps), expected, rtol=1e-10)


def test_a_random_epsilon_counts_with_its_mean():
    eps = Moments(torch.tensor(0.25).double(), torch.tensor(0.1).double())
    assert_equal(apply(functions.rms_normalize, X, (1,), eps), apply(functions.rms_normalize, X, (1,), 0.25))


# --- two ways of writing one function ------------------------------------------------------------


@pytest.mark.parametrize("rules", [CVP, STREAMLINING], ids=lambda rules: rules.name)
def test_glu_is_a_product_with_a_gate(rules):
    x = SOURCE.random(3, 6)
    values, gates = apply(aten.chunk.default, x, 2, -1)
    gate = apply(aten.sigmoid.default, gates, rules=rules)
    assert_equal(apply(aten.glu.default, x, rules=rules), apply(aten.mul.Tensor, values, gate))


@pytest.mark.parametrize(
    ("op", "written_out", "rtol"),
    [
        # The accuracies that the rules' docstrings give for their variances.
        (aten.silu.default, lambda x: aten.mul.Tensor(x, aten.sigmoid.default(x)), 4e-4),
        (functions.quick_gelu, lambda x: aten.mul.Tensor(x, aten.sigmoid.default(aten.mul.Tensor(x, 1.702))), 1e-3),
        (aten.square.default, lambda x: aten.mul.Tensor(x, x), 1e-9),
        (aten.tanh.default, lambda x: aten.tanh.default(aten.add.Tensor(x, 0.0)), 2e-4),
    ],
    ids=["silu", "quick_gelu", "square", "tanh"],
)
@pytest.mark.parametrize("rules", [CVP, STREAMLINING], ids=lambda rules: rules.name)
def test_a_chain_is_the_function_it_writes_out(rules, op, written_out, rtol):
    x = Moments(torch.linspace(-2, 2, 9).double(), torch.linspace(0.1, 2, 9).double())
    got = apply(functions.elementwise, fx.symbolic_trace(written_out), x, rules=rules)
    assert_equal(got, apply(op, x, rules=rules), rtol=rtol)


@pytest.mark.parametrize("rules", [CVP, STREAMLINING], ids=lambda rules: rules.name)
def test_a_straight_chain_keeps_its_slope_beside_large_constants(rules):
    """1e-3 x + 1e4 in float32: the difference of two values would have one digit left."""
    body = fx.symbolic_trace(lambda x, c: aten.add.Tensor(aten.mul.Tensor(x, 1e-3), c))
    x = Moments(torch.ones(3), torch.full((3,), 4.0))
    y = apply(functions.elementwise, body, x, torch.full((3,), 1e4), rules=rules)
    torch.testing.assert_close(y.var, torch.full((3,), 4e-6))


def test_max_pooling_is_the_largest_at_the_mean():
    x = SOURCE.random(2, 3, 4, 2)
    pooled = apply(aten.max_pool2d.default, x, [4, 2])
    assert_equal(pooled, apply(aten.amax.default, x, [2, 3], True, rules=STREAMLINING))
    assert_equal(pooled, apply(aten.adaptive_max_pool2d.default, x, [1, 1])[0])
    for z in (-1.3, 0.8):  # where all move together by as much, it is exact: max(μ + σz) = max μ + σz
        torch.testing.assert_close(F.max_pool2d(x.mean + 0.7 * z, [4, 2]), pooled.mean + 0.7 * z)


def test_neighbours_after_a_convolution_move_together():
    """Its weights are random, and positions share them: the maximum against 4,000 sampled networks."""
    smooth = F.interpolate(torch.randn(1, 3, 5, 5, generator=SOURCE.generator), scale_factor=4, mode="bilinear")
    weight = Moments(torch.randn(8, 3, 3, 3, generator=SOURCE.generator), torch.full((8, 3, 3, 3), 0.1))
    found = apply(aten.max_pool2d.default, apply(aten.conv2d.default, smooth, weight, None, [1, 1], [1, 1]), [2, 2])
    noise = torch.randn(4000, *weight.mean.shape, generator=SOURCE.generator)
    sampled = F.max_pool2d(F.conv2d(smooth, (weight.mean + weight.std * noise).flatten(0, 1), padding=1), 2)
    sampled = sampled.unflatten(1, (4000, 8))[0]
    error = (found.mean - sampled.mean(0))[0] / sampled.std(0)
    assert float(error.square().mean().sqrt()) < 0.2
    assert float((found.var[0] / sampled.var(0)).log().mean().exp()) == pytest.approx(1, abs=0.1)


# --- what rules decline --------------------------------------------------------------------------


def vector(*shape: int) -> Moments:
    return SOURCE.random(*shape)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.einsum.default, ("i,i,i->", [vector(3), vector(3), vector(3)])),
        (aten.einsum.default, ("ii,j", [vector(3, 3), vector(2)])),
        (aten.einsum.default, ("...j,...j->j", [vector(2, 3), vector(3)])),
        (aten.dropout.default, (vector(3), 0.1, True)),
    ],
    ids=["three operands", "a trace", "a sum over the ellipsis", "training"],
)
def test_declined(op, args):
    assert CVP[op](*args) is NotImplemented
