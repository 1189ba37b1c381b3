"""Activation rules against numerical integration, over all means and variances a network meets."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy import special
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode

import varprop as vp
from varprop.errors import RuleError
from varprop.moments import Moments
from varprop.rules import functions
from varprop.rules.activation import ACTIVATION, PAPER_SIGMOID
from varprop.rules.derivative import difference, differences
from varprop.rules.quadrature import integrate

aten = torch.ops.aten


class Activation(NamedTuple):
    """An op with its arguments, and the same function in NumPy with the points where it bends or jumps."""

    op: Callable[..., Tensor]
    reference: Callable[[np.ndarray], np.ndarray]
    kinks: tuple[float, ...] = ()
    args: tuple = ()
    kwargs: dict = {}  # noqa: RUF012
    bar: tuple[float, float] = (1e-3, 1e-3)
    """Relative error allowed in the variance for v ≤ 4, and above; in float32, or in any dtype for a quadrature."""
    largest_var: float = 100.0
    closed: bool = True
    """Is it a closed form? If not, ``bar`` is the error that the rule's docstring admits."""

    def moments(self, x: Moments) -> Moments:
        return ACTIVATION[self.op](x, *self.args, **self.kwargs)

    def plain(self, x: Tensor) -> Tensor:
        args = (arg.to(x.dtype) if isinstance(arg, Tensor) else arg for arg in self.args)
        return self.op(x, *args, **self.kwargs)


def _elu(alpha=1.0, scale=1.0, rate=1.0):
    return lambda x: scale * np.where(x > 0, x, alpha * np.expm1(rate * np.minimum(x, 0)))


def by_quadrature(op, reference, bar, **options):
    return Activation(op, reference, bar=(bar, bar), closed=False, **options)


ACTIVATIONS = {
    "relu": Activation(aten.relu.default, lambda x: np.maximum(x, 0), (0,)),
    "gelu": by_quadrature(aten.gelu.default, lambda x: x * special.ndtr(x), 2e-4),
    "sigmoid": by_quadrature(aten.sigmoid.default, special.expit, 2e-4),
    "silu": by_quadrature(aten.silu.default, lambda x: x * special.expit(x), 3e-4),
    "tanh": by_quadrature(aten.tanh.default, np.tanh, 4e-4),
    "gelu tanh": by_quadrature(
        aten.gelu.default,
        lambda x: x * special.expit(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)),
        5e-4,
        kwargs={"approximate": "tanh"},
    ),
    "quick_gelu": by_quadrature(functions.quick_gelu, lambda x: x * special.expit(1.702 * x), 3e-4),
    "softplus": by_quadrature(aten.softplus.default, lambda x: np.logaddexp(0, x), 2e-4),
    "softplus beta": by_quadrature(aten.softplus.default, lambda x: np.logaddexp(0, 1.7 * x) / 1.7, 2e-4, args=(1.7,)),
    "log_sigmoid": by_quadrature(aten.log_sigmoid.default, lambda x: -np.logaddexp(0, -x), 2e-4),
    "mish": by_quadrature(aten.mish.default, lambda x: x * np.tanh(np.logaddexp(0, x)), 1e-4),
    "erf": by_quadrature(aten.erf.default, special.erf, 1e-5),
    "leaky_relu": Activation(aten.leaky_relu.default, lambda x: np.where(x > 0, x, 0.01 * x), (0,)),
    "abs": Activation(aten.abs.default, np.abs, (0,)),
    "relu6": Activation(aten.relu6.default, lambda x: np.clip(x, 0, 6), (0, 6)),
    "hardtanh": Activation(aten.hardtanh.default, lambda x: np.clip(x, -1, 1), (-1, 1)),
    "clamp": Activation(aten.clamp.default, lambda x: np.clip(x, -0.5, 2), (-0.5, 2), args=(-0.5, 2.0)),
    "clamp crossed": Activation(aten.clamp.default, lambda x: 0 * x - 1.0, args=(2.0, -1.0)),
    "clamp below": Activation(aten.clamp.default, lambda x: np.maximum(x, 1.5), (1.5,), args=(1.5,)),
    "clamp above": Activation(aten.clamp.default, lambda x: np.minimum(x, 1.5), (1.5,), args=(None, 1.5)),
    "clamp_min": Activation(aten.clamp_min.default, lambda x: np.maximum(x, -2), (-2,), args=(-2.0,)),
    "clamp_max": Activation(aten.clamp_max.default, lambda x: np.minimum(x, -2), (-2,), args=(-2.0,)),
    "hardsigmoid": Activation(aten.hardsigmoid.default, lambda x: np.clip(x / 6 + 0.5, 0, 1), (-3, 3)),
    "hardswish": Activation(
        aten.hardswish.default, lambda x: x * np.clip(x / 6 + 0.5, 0, 1), (-3, 3), bar=(2e-3, 2e-3)
    ),
    "threshold": Activation(aten.threshold.default, lambda x: np.where(x > 0.5, x, -1.0), (0.5,), args=(0.5, -1.0)),
    "heaviside": Activation(aten.heaviside.default, lambda x: np.heaviside(x, 0.25), (0,), args=(torch.tensor(0.25),)),
    "sign": Activation(aten.sign.default, np.sign, (0,)),
    "elu": Activation(aten.elu.default, _elu(), (0,)),
    "elu scaled": Activation(aten.elu.default, _elu(1.5, 0.7, 2.0), (0,), args=(1.5, 0.7, 2.0)),
    "celu": Activation(aten.celu.default, _elu(2.0, 1.0, 0.5), (0,), args=(2.0,)),
    "selu": Activation(aten.selu.default, _elu(1.6732632423543772, 1.0507009873554805), (0,)),
    "exp": Activation(aten.exp.default, np.exp, largest_var=9.0),
    "sin": Activation(aten.sin.default, np.sin, largest_var=9.0),
    "cos": Activation(aten.cos.default, np.cos, largest_var=9.0),
    "square": Activation(aten.square.default, np.square),
    "pow 0": Activation(aten.pow.Tensor_Scalar, np.ones_like, args=(0,)),
    "pow 1": Activation(aten.pow.Tensor_Scalar, lambda x: x, args=(1,)),
    "pow 2": Activation(aten.pow.Tensor_Scalar, np.square, args=(2,)),
    "pow 3": Activation(aten.pow.Tensor_Scalar, lambda x: x**3, args=(3.0,)),
    "pow 4": Activation(aten.pow.Tensor_Scalar, lambda x: x**4, args=(4,)),
}
EACH = pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
SMOOTH = {name: each for name, each in ACTIVATIONS.items() if not each.kinks and name != "clamp crossed"}

# Variances on both sides of where a rule changes its formula: 0.5 (tanh-GELU) and 4 in the argument of the sigmoid.
SEAMS = [
    scale * factor for scale in (0.5, 1.0, 4 / 1.702**2, 4 / 1.7**2, 4.0) for factor in (0.97, 0.9999, 1.0001, 1.03)
]


def grid(largest_var: float = 100.0) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances that float32 holds exactly."""
    variances = np.concatenate([np.geomspace(1e-8, 100, 31), SEAMS])
    mean, var = np.meshgrid(np.linspace(-10, 10, 41), variances[variances <= largest_var], indexing="ij")
    return mean.ravel().astype(np.float32).astype(float), var.ravel().astype(np.float32).astype(float)


@functools.cache
def quadrature(name: str) -> tuple[np.ndarray, np.ndarray]:
    """E f and Var f over the grid by Gauss–Legendre on panels in z, cut at the kinks of f."""
    activation = ACTIVATIONS[name]
    mean, var = grid(activation.largest_var)
    points, weights = np.polynomial.legendre.leggauss(10)
    std = np.sqrt(var)[:, None]
    cuts = [np.clip((kink - mean[:, None]) / std, -12, 12) for kink in activation.kinks]
    edges = np.sort(np.concatenate([np.broadcast_to(np.linspace(-12, 12, 97), (mean.size, 97)), *cuts], 1), 1)
    half = 0.5 * np.diff(edges)[..., None]
    z = (0.5 * (edges[:, 1:] + edges[:, :-1])[..., None] + half * points).reshape(mean.size, -1)
    weight = (half * weights).reshape(mean.size, -1) * np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    centre = activation.reference(mean)
    difference = activation.reference(mean[:, None] + std * z) - centre[:, None]
    shift = (weight * difference).sum(1)
    return centre + shift, (weight * (difference - shift[:, None]) ** 2).sum(1)


def errors(name: str, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The variances of the grid, the error of the mean and the relative error of the variance (0 where it is tiny)."""
    activation = ACTIVATIONS[name]
    mean, var = grid(activation.largest_var)
    true_mean, true_var = quadrature(name)
    y = activation.moments(Moments(torch.tensor(mean, dtype=dtype), torch.tensor(var, dtype=dtype)))
    counts = true_var >= 1e-6 * var
    var_error = np.where(counts, np.abs(y.var.double().numpy() - true_var) / np.where(counts, true_var, 1), 0)
    return var, np.abs(y.mean.double().numpy() - true_mean) / np.maximum(1, np.abs(true_mean)), var_error


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_accuracy(name, dtype):
    var, mean_error, var_error = errors(name, dtype)
    activation, exact = ACTIVATIONS[name], dtype == torch.float64
    narrow, wide = (1e-6, 1e-6) if exact and activation.closed else activation.bar
    assert mean_error.max() <= (1e-12 if exact and activation.closed else 2e-5)
    assert var_error[var <= 4].max() <= narrow
    assert var_error[var > 4].max() <= wide


MEANS = [0.0, 1e-3, -1e-3, 0.5, 1.0, -1.0, 1.5, 3.0, -3.0, 6.0, 10.0, -10.0, 30.0, -30.0, 100.0, -100.0, 1e4, -1e4]
VARIANCES = [0.0, 1e-30, 1e-20, 1e-12, 1e-8, 1e-4, 0.1, 0.49999, 0.5, 1.0, 4.0, 10.0, 100.0, 1e4, 1e6]


def extremes(dtype: torch.dtype = torch.float32) -> Moments:
    mean, var = torch.meshgrid(torch.tensor(MEANS, dtype=dtype), torch.tensor(VARIANCES, dtype=dtype), indexing="ij")
    return Moments(mean.contiguous().requires_grad_(), var.contiguous().requires_grad_())


@EACH
def test_values_and_gradients_are_finite_and_variances_not_negative(activation):
    for dtype in (torch.float32, torch.float64):
        x = extremes(dtype)
        y = activation.moments(x)
        assert y.mean.isfinite().all()
        assert y.var.isfinite().all()
        assert (y.var >= 0).all()
        for part in y:
            if part.requires_grad:
                for gradient in torch.autograd.grad(part.sum(), x, retain_graph=True, materialize_grads=True):
                    assert gradient.isfinite().all()
    generator = torch.Generator().manual_seed(0)
    mean = 30 * torch.randn(20_000, generator=generator)
    var = 10 ** (12 * torch.rand(20_000, generator=generator) - 8)
    assert (activation.moments(Moments(mean, var)).var >= 0).all()


@EACH
def test_without_variance_it_is_the_plain_op(activation):
    for dtype in (torch.float32, torch.float64):
        mean = torch.tensor([mean for mean in MEANS if activation.op is not aten.exp.default or mean < 80], dtype=dtype)
        y = activation.moments(Moments(mean, torch.zeros_like(mean)))
        torch.testing.assert_close(y.mean, activation.plain(mean))
        assert (y.var == 0).all()


@EACH
def test_gradients_are_those_of_the_values(activation):
    mean, var = torch.meshgrid(
        torch.tensor([-2.2, 0.0, 0.7, 3.1], dtype=torch.float64),
        torch.tensor([1e-3, 0.3, 2.1, 30.0], dtype=torch.float64),
        indexing="ij",
    )
    x = Moments(mean.contiguous().requires_grad_(), var.contiguous().requires_grad_())
    assert torch.autograd.gradcheck(
        lambda *x: tuple(activation.moments(Moments(*x))), tuple(x), fast_mode=True, atol=1e-6, rtol=1e-4
    )


@EACH
def test_half_precision_is_computed_in_single(activation):
    for dtype in (torch.bfloat16, torch.float16):
        mean, var = torch.linspace(-3, 3, 25).to(dtype), torch.linspace(0, 2, 25).to(dtype)
        y, single = activation.moments(Moments(mean, var)), activation.moments(Moments(mean.float(), var.float()))
        assert (y.mean.dtype, y.var.dtype) == (dtype, dtype)
        for part, precise in zip(y, single, strict=True):  # GELU leaves out what rounding would
            near = (part - precise).abs() <= torch.finfo(dtype).eps * (precise.abs() + var)
            assert (near | (part == precise.to(dtype))).all()


@EACH
def test_any_shape(activation):
    for shape in ((), (0,), (3, 0, 2), (2, 3, 4)):
        y = activation.moments(Moments(torch.full(shape, 0.4), torch.full(shape, 0.2)))
        assert y.mean.shape == y.var.shape == shape


class Recorder(TorchDispatchMode):
    """The ops that ran."""

    def __init__(self):
        super().__init__()
        self.ops = set()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.ops.add(op)
        return op(*args, **kwargs or {})


def test_small_variances_survive_compilation():
    """Inductor compiles expm1 on CPUs as exp(x) − 1, which is 0 for the small variances of posteriors."""
    with Recorder() as recorder:
        for activation in ACTIVATIONS.values():
            activation.moments(Moments(torch.randn(3), torch.rand(3)))
    assert aten.exp.default in recorder.ops
    assert aten.expm1.default not in recorder.ops


def test_traceable_with_symbolic_shapes():
    """One rule of each form: a closed formula, a fitted rule, pieces, and nodes in a tensor."""
    forms = ("relu", "gelu", "hardswish", "mish")

    class Net(torch.nn.Module):
        def forward(self, mean, var):
            return {name: tuple(ACTIVATIONS[name].moments(Moments(mean, var))) for name in forms}

    example = (torch.randn(4, 3), torch.rand(4, 3))
    batch = torch.export.Dim("batch")
    exported = torch.export.export(Net(), example, dynamic_shapes=({0: batch}, {0: batch}), strict=False).module()
    mean, var = 3 * torch.randn(7, 3), 10 * torch.rand(7, 3)
    for name, result in exported(mean, var).items():
        for got, expected in zip(result, ACTIVATIONS[name].moments(Moments(mean, var)), strict=True):
            torch.testing.assert_close(got, expected, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("name", ["relu", "gelu", "hardswish"])
def test_compilable_without_graph_breaks(name):
    torch.compiler.reset()
    compiled = torch.compile(ACTIVATIONS[name].moments, backend="aot_eager", fullgraph=True)
    x = Moments(3 * torch.randn(5, 3), 10 * torch.rand(5, 3))
    for got, expected in zip(compiled(x), ACTIVATIONS[name].moments(x), strict=True):
        torch.testing.assert_close(got, expected)


# --- rules with two tensors, refusals, singular functions ------------------------------------------------------------


@pytest.mark.parametrize("shape", [(50, 3, 2), (50, 3), (50,), ()], ids=str)
def test_prelu_with_a_random_weight(shape):
    channels = shape[1] if len(shape) > 1 else 1
    x = Moments(2 * torch.randn(shape, dtype=torch.float64), torch.rand(shape, dtype=torch.float64))
    weight = Moments(torch.rand(channels, dtype=torch.float64), 0.1 * torch.rand(channels, dtype=torch.float64))
    rule = ACTIVATION[aten.prelu.default]
    # Given the weight the moments are linear and quadratic in it, so three Gauss–Hermite nodes are exact.
    given = [rule(x, weight.mean + z * weight.std) for z in (-math.sqrt(3), 0.0, math.sqrt(3))]
    first, second = (
        sum(w * part for w, part in zip((1 / 6, 2 / 3, 1 / 6), parts, strict=True))
        for parts in ([y.mean for y in given], [y.var + y.mean**2 for y in given])
    )
    y = rule(x, weight)
    torch.testing.assert_close(y.mean, first)
    torch.testing.assert_close(y.var, second - first**2)


def test_prelu_with_a_constant_weight_is_leaky_relu():
    x = Moments(torch.randn(50, 3), torch.rand(50, 3))
    y = ACTIVATION[aten.prelu.default](x, torch.tensor([0.1, -0.5, 2.0]))
    for channel, slope in enumerate((0.1, -0.5, 2.0)):
        expected = ACTIVATION[aten.leaky_relu.default](Moments(x.mean[:, channel], x.var[:, channel]), slope)
        for got, part in zip(y, expected, strict=True):
            torch.testing.assert_close(got[:, channel], part)


def test_what_cannot_be_is_refused():
    x = Moments(torch.zeros(3), torch.ones(3))
    with pytest.raises(RuleError, match="cannot be random"):
        ACTIVATION[aten.heaviside.default](x, x)
    with pytest.raises(RuleError, match="'none' or 'tanh', not 'quick'"):
        ACTIVATION[aten.gelu.default](x, approximate="quick")
    with pytest.raises(RuleError, match="cannot be random"):
        ACTIVATION[aten.heaviside.default](x.mean, x)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.log.default, ()),
        (aten.log1p.default, ()),
        (aten.reciprocal.default, ()),
        (aten.rsqrt.default, ()),
        (aten.pow.Tensor_Scalar, (-1,)),
    ],
)
def test_singular_functions_are_linearised(op, args):
    mean = torch.linspace(0.2, 5, 20, dtype=torch.float64).requires_grad_()
    var = torch.linspace(0, 2, 20, dtype=torch.float64)
    value = op(mean, *args)
    (slope,) = torch.autograd.grad(value.sum(), mean)
    y = vp.CVP[op](Moments(mean, var), *args)
    torch.testing.assert_close(y.mean, value)
    torch.testing.assert_close(y.var, slope**2 * var)


@pytest.mark.parametrize(("op", "args"), [(aten.sqrt.default, ()), (aten.pow.Tensor_Scalar, (2.5,))])
def test_powers_of_what_is_positive(op, args):
    """Where the Gaussian is far from 0 the moments are those of samples; at 0 they are finite, gradients too."""
    mean, std = torch.tensor([4.0, 9.0], dtype=torch.float64), torch.tensor([0.4, 0.9], dtype=torch.float64)
    y = ACTIVATION[op](Moments(mean, std**2), *args)
    draws = op(Moments(mean, std**2).sample(400_000, torch.Generator().manual_seed(0)), *args)
    torch.testing.assert_close(y.mean, draws.mean(0), rtol=2e-3, atol=0)
    torch.testing.assert_close(y.var, draws.var(0), rtol=2e-2, atol=0)
    zero = torch.zeros(3, requires_grad=True)
    edge = ACTIVATION[op](Moments(zero, torch.tensor([0.0, 1e-4, 1.0])), *args)
    gradient = torch.autograd.grad(edge.mean.sum() + edge.var.sum(), zero)[0]
    assert bool(torch.stack([*edge, gradient]).isfinite().all())
    assert not bool(torch.stack(edge)[:, 0].any())


def test_the_papers_sigmoid_and_tanh():
    rules = vp.CVP.replace(PAPER_SIGMOID)
    mean, var = torch.linspace(-3, 3, 7, dtype=torch.float64), torch.linspace(0.1, 40, 7, dtype=torch.float64)
    beta = (1 + math.pi / 8 * var).sqrt()
    gate = torch.sigmoid(mean / beta)
    y = rules[aten.sigmoid.default](Moments(mean, var))
    torch.testing.assert_close(y.mean, gate)
    torch.testing.assert_close(y.var, gate * (1 - gate) * (1 - 1 / beta))
    y = rules[aten.tanh.default](Moments(mean / 2, var / 4))
    torch.testing.assert_close(y.mean, 2 * gate - 1)
    torch.testing.assert_close(y.var, 4 * gate * (1 - gate) * (1 - 1 / beta))


# --- integrate --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMOOTH)
def test_integrate_agrees_with_quadrature(name):
    activation = SMOOTH[name]
    mean, var = grid(activation.largest_var)
    true_mean, true_var = quadrature(name)
    y = integrate(activation.plain, Moments(torch.tensor(mean), torch.tensor(var)))
    mean_error = np.abs(y.mean.numpy() - true_mean) / np.maximum(1, np.abs(true_mean))
    var_error = np.where(true_var >= 1e-6 * var, np.abs(y.var.numpy() - true_var) / np.maximum(true_var, 1e-30), 0)
    for largest, mean_bar, var_bar in ((1, 1e-9, 1e-9), (4, 1e-8, 1e-5), (100, 5e-4, 3e-3)):
        assert mean_error[var <= largest].max() <= mean_bar
        assert var_error[var <= largest].max() <= var_bar


@pytest.mark.parametrize("op", [aten.square.default, aten.tanh.default, aten.asinh.default, aten.gelu.default])
@pytest.mark.parametrize("mean", [0.3, 10.0, -1e3])
def test_integrate_keeps_small_variances_in_float32(op, mean):
    """By differences that do not cancel, of one op and of a chain of them."""
    chain = fx.symbolic_trace(lambda x: aten.mul.Tensor(aten.relu.default(x), op(x)))
    for var in (1e-8, 1e-4, 1e-2):
        x = Moments(torch.full((3,), mean), torch.full((3,), var))
        for function, step in ((op, functools.partial(difference, op)), (chain, functools.partial(differences, chain))):
            y = integrate(function, x, step)
            exact = integrate(function, Moments(x.mean.double(), x.var.double()))
            assert (y.mean.dtype, y.var.dtype) == (torch.float32, torch.float32)
            torch.testing.assert_close(y.var.double(), exact.var, rtol=3e-5, atol=1e-12 * var)


@pytest.mark.parametrize(
    "op", [getattr(aten, name).default for name in ("hardtanh", "softshrink", "hardshrink", "hardswish", "elu", "selu")]
)
@pytest.mark.parametrize("var", [1e-6, 1e-2, 4.0])
def test_integrate_across_several_bends(op, var):
    """Both ends of a step may have the same slope, and be on different lines."""
    chain = fx.symbolic_trace(lambda x: aten.mul.Tensor(x, op(x)))
    x = Moments(torch.linspace(-3.0, 3.0, 13), torch.full((13,), var))
    y = integrate(chain, x, functools.partial(differences, chain))
    exact = integrate(chain, Moments(x.mean.double(), x.var.double()))
    torch.testing.assert_close(y.mean.double(), exact.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(y.var.double(), exact.var, rtol=1e-3, atol=1e-4 * float(exact.var.max()))


def test_integrate_has_the_right_gradients_without_variance():
    mean = torch.linspace(-2, 2, 5, dtype=torch.float64).requires_grad_()
    var = torch.zeros(5, dtype=torch.float64).requires_grad_()
    y = integrate(torch.sin, Moments(mean, var))
    torch.testing.assert_close(y.mean, mean.sin())
    assert (y.var == 0).all()
    (gradient,) = torch.autograd.grad(y.var.sum(), var)
    torch.testing.assert_close(gradient, mean.cos() ** 2, rtol=1e-5, atol=1e-6)
