"""Arguments for every op that has a rule: small, of odd shapes, random and constant in turn."""

import dataclasses
import enum
import functools
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

import varprop as vp
from varprop.moments import Moments, is_random, mean_of
from varprop.rules import functions

aten = torch.ops.aten


class Kind(enum.Enum):
    """What is known of a result, and so how its rule is tested."""

    AFFINE = "affine in each random argument: its moments have an exact reference"
    CERTAIN = "without variance: the op's own result at the mean"
    CURVED = "neither: compared with samples"


@dataclass(frozen=True)
class Case:
    """An op and its arguments.

    ``bias`` is the relative error its rule admits, see ``check_rule``. ``mean_scales`` and ``var_scales`` are the
    magnitudes at which float32 is compared with float64, fewer where the op has a domain.
    """

    op: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    bias: float | tuple[float, float] = 0.0
    samples: int = 20_000
    note: str = ""
    mean_scales: tuple[float, ...] = (1e-3, 1.0, 1e3)
    var_scales: tuple[float, ...] = (1e-8, 1e-3, 1.0, 1e2)
    kind: Kind = Kind.CURVED
    complex_args: tuple[int, ...] = ()
    """Places of arguments whose last dim is real and imaginary part; complex results are turned to such pairs, too."""

    @property
    def name(self) -> str:
        name = str(self.op) if hasattr(self.op, "_schema") else self.op.__name__
        return f"{name}-{self.note}" if self.note else name

    def change(self, function: Callable[[Any], Any]) -> "Case":
        """The same case with ``function`` applied to every tensor and every ``Moments``."""
        return dataclasses.replace(self, args=_map(function, self.args))

    def scaled(self, mean: float = 1.0, var: float = 1.0) -> "Case":
        return self.change(lambda leaf: Moments(leaf.mean * mean, leaf.var * var) if is_random(leaf) else leaf)

    def to(self, dtype: torch.dtype) -> "Case":
        def cast(leaf: Any) -> Any:
            if is_random(leaf):
                return Moments(*map(cast, leaf))
            return leaf.to(dtype) if leaf.is_floating_point() else leaf

        return self.change(cast)

    def at_mean(self) -> "Case":
        return self.change(mean_of)

    def random(self) -> list[Moments]:
        found: list[Moments] = []
        self.change(lambda leaf: found.append(leaf) if is_random(leaf) else None)
        return found

    def run(self) -> list[Any]:
        """The op's own results; there must be nothing random left."""
        return self._call(self.op)

    def apply(self, rules: vp.RuleSet) -> list[Any]:
        """The results of the op's rule."""
        return self._call(rules[self.op])

    def _call(self, function: Callable[..., Any]) -> list[Any]:
        args = [_complex(arg) if i in self.complex_args else arg for i, arg in enumerate(self.args)]
        return [_pairs(result) for result in results(function(*args, **self.kwargs))]


Affine = functools.partial(Case, kind=Kind.AFFINE)
Certain = functools.partial(Case, kind=Kind.CERTAIN)


def results(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) and not is_random(value) else [value]


def _complex(x: Any) -> Any:
    return Moments(*map(torch.view_as_complex, x)) if is_random(x) else torch.view_as_complex(x)


def _pairs(x: Any) -> Any:
    if is_random(x):
        return Moments(*map(_pairs, x))
    return torch.view_as_real(x.resolve_conj()) if isinstance(x, Tensor) and x.is_complex() else x


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    if is_random(value) or isinstance(value, Tensor):
        return function(value)
    return type(value)(_map(function, item) for item in value) if isinstance(value, list | tuple) else value


class Source:
    """Tensors in float64, the same at every run and in any order of families."""

    def __init__(self, name: str) -> None:
        self.generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))

    def constant(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def positive(self, *shape: int) -> Tensor:
        return 0.5 + torch.rand(shape, generator=self.generator, dtype=torch.float64)

    def random(self, *shape: int, mean: float = 0.0, spread: float = 1.0, var: float = 0.5) -> Moments:
        """Means around ``mean``, variances between 0.5 and 1.5 times ``var``."""
        return Moments(mean + spread * self.constant(*shape), var * self.positive(*shape))

    def apart(self, *shape: int) -> Moments:
        """No two entries within ten standard deviations of each other."""
        count = math.prod(shape)
        order = torch.randperm(count, generator=self.generator).double().reshape(shape)
        return Moments(order - count / 2, 0.005 * self.positive(*shape))

    def integers(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=self.generator)

    def mask(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator) < 0.5


def arithmetic() -> Iterator[Case]:
    s = Source("arithmetic")
    x, y, row, c = s.random(3, 5), s.random(3, 5), s.random(5), s.constant(3, 5)
    yield Affine(aten.add.Tensor, (x, y))
    yield Affine(aten.add.Tensor, (s.random(3, 1), s.random(4)), {"alpha": -2.5}, note="broadcast, alpha")
    yield Affine(aten.add.Tensor, (c, row), {"alpha": 3}, note="constant first")
    yield Affine(aten.add.Tensor, (row, c), note="constant wider")
    yield Affine(aten.add.Tensor, (x, 1.5), note="number")
    yield Affine(aten.add.Scalar, (x, 2.5))
    yield Affine(aten.add.Scalar, (x, 2.5, 3), note="alpha")
    yield Affine(aten.sub.Tensor, (x, row), {"alpha": 0.5})
    yield Affine(aten.sub.Tensor, (c, x), note="constant first")
    yield Affine(aten.sub.Scalar, (x, 2.5))
    yield Affine(aten.rsub.Scalar, (x, 2.5))
    yield Affine(aten.rsub.Scalar, (x, 2.5, 2), note="alpha")
    yield Affine(aten.rsub.Tensor, (x, row), {"alpha": 2})
    yield Affine(aten.neg.default, (x,))
    yield Affine(aten.mul.Tensor, (x, y))
    yield Affine(aten.mul.Tensor, (s.random(3, 1), s.random(1, 4)), note="broadcast")
    yield Affine(aten.mul.Tensor, (c, row), note="constant first")
    yield Affine(aten.mul.Tensor, (row, c), note="constant wider")
    yield Affine(aten.mul.Tensor, (x, -3.0), note="number")
    yield Affine(aten.mul.Scalar, (x, -3.0))
    yield Affine(aten.addcmul.default, (x, y, row), {"value": -0.5})
    yield Affine(aten.addcmul.default, (c, x, c), note="constants")
    yield Affine(aten.lerp.Scalar, (x, y, 0.3))
    yield Affine(aten.lerp.Scalar, (c, y, 0.3), note="constant")
    yield Affine(aten.lerp.Tensor, (x, y, row), note="random weight")
    yield Affine(aten.lerp.Tensor, (c, y, c), note="constants")
    for op in (aten.div.Tensor, aten.true_divide.Tensor):
        yield Affine(op, (x, s.positive(5)))
    yield Affine(aten.div.Tensor, (row, s.positive(3, 5)), note="constant wider")
    yield Affine(aten.div.Scalar, (x, -3.0))
    yield Certain(aten.div.Tensor_mode, (x, 0.3), {"rounding_mode": "floor"})
    yield Certain(aten.div.Scalar_mode, (x, 0.3), {"rounding_mode": "trunc"})
    inside = s.random(3, 5, mean=1.5, spread=0.1, var=1e-4)
    for op in (aten.remainder, aten.fmod):
        yield Affine(op.Scalar, (inside, 3.0))
        yield Affine(op.Tensor, (inside, torch.full((5,), 3.0, dtype=torch.float64)))
    # Linearised in a divisor N(m, v): E[y] is off by μ v/m³, which is √v/m of the deviation; Var[y] by about 8 v/m².
    divisor = s.random(3, 5, mean=4.0, spread=0.1, var=0.01)
    linear_part = {"bias": (0.03, 0.008), "mean_scales": (1.0, 1e3), "var_scales": (1e-8, 1e-3, 1.0)}
    yield Case(aten.div.Tensor, (x, divisor), **linear_part, note="random divisor")
    yield Case(aten.div.Tensor, (c, divisor), **linear_part, note="only the divisor random")


def linear() -> Iterator[Case]:
    s = Source("linear")
    x, weight, bias = s.random(2, 3, 5), s.random(4, 5), s.random(4)
    for random in range(1, 8):  # every combination of random and constant
        parts = [part if random & 1 << i else part.mean for i, part in enumerate((x, weight, bias))]
        names = "xwb"
        yield Affine(
            aten.linear.default, tuple(parts), note="random " + "".join(names[i] for i in range(3) if random & 1 << i)
        )
    yield Affine(aten.linear.default, (x, weight), note="no bias")
    yield Affine(aten.linear.default, (s.random(5), weight, None), note="vector")
    a, b = s.random(3, 4), s.random(4, 2)
    yield Affine(aten.addmm.default, (s.random(2), a, b), {"beta": 0.5, "alpha": -2})
    yield Affine(aten.addmm.default, (s.random(3, 2), a, b.mean), note="constant weight")
    yield Affine(aten.addmm.default, (s.random(3, 2), a.mean, b.mean), {"alpha": 2}, note="random bias")
    yield Affine(aten.addmm.default, (s.constant(2), a.mean, b), {"beta": 2}, note="random weight")
    yield Affine(
        aten.baddbmm.default, (s.random(2, 3, 3), s.random(2, 3, 4), s.random(2, 4, 3)), {"beta": 2, "alpha": 0.5}
    )
    yield Affine(aten.mm.default, (a, b))
    yield Affine(aten.mm.default, (a.mean, b), note="constant first")
    yield Affine(aten.bmm.default, (s.random(2, 3, 4), s.constant(2, 4, 3)))
    yield Affine(aten.matmul.default, (a, b))
    yield Affine(aten.matmul.default, (s.random(2, 1, 3, 4), s.random(5, 4, 2)), note="broadcast")
    yield Affine(aten.matmul.default, (s.random(2, 3, 4), s.random(4)), note="vector")
    yield Affine(aten.mv.default, (a, s.random(4)))
    yield Affine(aten.dot.default, (s.random(5), s.random(5)))
    yield Affine(aten.vdot.default, (s.random(5), s.random(5)))
    yield Affine(aten.linalg_vecdot.default, (s.random(2, 5), s.random(5)))
    yield Affine(aten.outer.default, (s.random(3), s.random(4)))
    yield Affine(aten.tensordot.default, (s.random(2, 3, 4), s.random(4, 3, 2), [1, 2], [1, 0]))
    yield Affine(aten.bilinear.default, (s.random(1, 2), s.random(1, 3), s.random(2, 2, 3), s.random(2)))
    yield Affine(aten.bilinear.default, (s.random(2, 2), s.constant(2, 3), s.constant(2, 2, 3)), note="one random")
    yield Affine(aten.einsum.default, ("bij,bjk->bik", [s.random(2, 3, 4), s.random(2, 4, 3)]))
    yield Affine(aten.einsum.default, ("ij,jk", [a, b]), note="implicit")
    yield Affine(aten.einsum.default, ("...i,ki->...k", [s.random(2, 3, 4), s.constant(3, 4)]), note="ellipsis")
    yield Affine(aten.einsum.default, ("ijk->ki", [s.random(2, 3, 4)]), note="one operand")
    # Σ_k x_j y_jk = x_j Σ_k y_jk: an entry that is summed several times counts once.
    yield Affine(aten.einsum.default, ("j,jk->", [s.random(3), s.random(3, 2)]), note="a sum in one operand")
    yield Affine(aten.einsum.default, ("...j,j->j", [s.random(2, 3), s.random(3)]), note="a sum over the ellipsis")
    yield Affine(aten.einsum.default, ("bi,ji->bj", [s.random(2, 1), s.random(3, 4)]), note="a size of 1")
    yield Affine(aten.einsum.default, ("...i,ji->...j", [s.random(2, 3), s.random(4, 1)]), note="ellipsis, size of 1")


def convolution() -> Iterator[Case]:
    s = Source("convolution")
    x1, w1, b = s.random(2, 3, 7), s.random(4, 3, 3), s.random(4)
    yield Affine(aten.conv1d.default, (x1, w1, b, [2], [1], [1]))
    yield Affine(aten.conv1d.default, (x1.mean, w1.mean, b), note="random bias")
    yield Affine(aten.conv1d.default, (x1.mean[0], w1.mean, b), note="random bias, no batch")
    yield Affine(aten.conv1d.padding, (x1, w1, b, [1], "same"))
    x2, w2, grouped = s.random(2, 2, 4, 5), s.random(4, 2, 3, 2), s.random(4, 1, 3, 2)
    b2 = s.random(4)
    yield Affine(aten.conv2d.default, (x2, w2, b2, [2, 1], [1, 0], [1, 2]), note="stride, padding, dilation")
    yield Affine(aten.conv2d.default, (x2, grouped, None, [1, 1], [1, 1], [1, 1], 2), note="groups")
    yield Affine(aten.conv2d.default, (x2, w2.mean, b2.mean), note="random x")
    yield Affine(aten.conv2d.default, (x2.mean, w2, None), note="random weight")
    yield Affine(aten.conv2d.default, (x2.mean, w2, b2), note="random weight and bias")
    yield Affine(aten.conv2d.default, (x2.mean, w2.mean, b2), note="random bias")
    yield Affine(aten.conv2d.padding, (x2, w2, b2, [1, 1], "same", [1, 2]))
    yield Affine(aten.conv2d.padding, (x2, w2.mean, b2, [1, 1], "valid"), note="valid")
    x3, w3 = s.random(1, 2, 3, 4, 3), s.random(3, 2, 2, 3, 2)
    yield Affine(aten.conv3d.default, (x3, w3, s.random(3), [1, 2, 1], [1, 1, 0]))
    yield Affine(aten.conv3d.padding, (x3, w3, None, [1, 1, 1], "same"))
    yield Affine(aten.conv_transpose1d.default, (s.random(2, 3, 4), s.random(3, 2, 3), s.random(2), [2], [1], [1]))
    yield Affine(
        aten.conv_transpose2d.input,
        (s.random(1, 4, 3, 3), s.random(4, 2, 3, 2), s.random(4), [2, 1], [1, 0], [1, 0], 2, [1, 2]),
        note="groups, dilation",
    )
    yield Affine(
        aten.conv_transpose2d.input, (s.constant(1, 4, 3, 3), s.constant(4, 2, 3, 2), s.random(2)), note="random bias"
    )
    yield Affine(
        aten.conv_transpose3d.input, (s.random(1, 2, 2, 3, 2), s.random(2, 3, 2, 2, 2), s.random(3), [1, 2, 1])
    )


def activation() -> Iterator[Case]:
    s = Source("activation")
    # Within 3 deviations of every kink: what happens in a far tail, samples do not see.
    x = Moments(torch.linspace(-1.5, 1.5, 20, dtype=torch.float64).reshape(4, 5), s.positive(4, 5))
    bounded = {"samples": 40_000}
    for op in (
        aten.abs.default,
        aten.asinh.default,
        aten.atan.default,
        aten.celu.default,
        aten.elu.default,
        aten.erf.default,
        aten.erfc.default,
        aten.gelu.default,
        aten.hardsigmoid.default,
        aten.hardswish.default,
        aten.hardtanh.default,
        aten.leaky_relu.default,
        aten.log_sigmoid.default,
        aten.mish.default,
        aten.relu.default,
        aten.relu6.default,
        aten.selu.default,
        aten.sigmoid.default,
        aten.sign.default,
        aten.silu.default,
        aten.softplus.default,
        aten.tanh.default,
        functions.quick_gelu,
    ):
        yield Case(op, (x,), **bounded)
    yield Case(aten.gelu.default, (x,), {"approximate": "tanh"}, **bounded, note="tanh")
    yield Case(aten.celu.default, (x, 0.5), **bounded, note="alpha")
    yield Case(aten.elu.default, (x, 0.5, 2.0, 1.5), **bounded, note="alpha, scales")
    yield Case(aten.leaky_relu.default, (x, 0.2), **bounded, note="slope")
    yield Case(aten.softplus.default, (x, 2.0), **bounded, note="beta")
    yield Case(aten.hardtanh.default, (x, -0.5, 2.0), **bounded, note="range")
    yield Case(aten.clamp.default, (x, -1.0, 0.5), **bounded)
    yield Case(aten.clamp.default, (x, None, 0.5), **bounded, note="max only")
    yield Case(aten.clamp_min.default, (x, -0.5), **bounded)
    yield Case(aten.clamp_max.default, (x, 0.5), **bounded)
    yield Case(aten.threshold.default, (x, 0.3, -1.0), **bounded)
    yield Case(aten.heaviside.default, (x, s.constant(5)), **bounded)
    yield Case(aten.prelu.default, (x, s.random(5)), **bounded)
    yield Case(aten.prelu.default, (x, s.constant(5)), **bounded, note="constant weight")
    yield Affine(aten.prelu.default, (x.mean, s.random(5)), note="random weight")
    yield Case(aten.prelu.default, (s.random(2, 3, 4), s.random(1)), **bounded, note="one weight")
    yield Case(aten.square.default, (x,), **bounded)
    for exponent in (2, 3, 4):
        yield Case(aten.pow.Tensor_Scalar, (x, exponent), **bounded, note=str(exponent))
    yield Case(aten.sin.default, (x,), **bounded)
    yield Case(aten.cos.default, (x,), **bounded)
    growing = {**bounded, "mean_scales": (1e-3, 1.0), "var_scales": (1e-8, 1e-3, 1.0)}
    for op in (aten.exp.default, aten.exp2.default, aten.expm1.default, aten.sinh.default, aten.cosh.default):
        yield Case(op, (s.random(4, 5, var=0.1),), **growing)
    for op in (aten.deg2rad.default, aten.rad2deg.default):
        yield Affine(op, (x,))
    bounds = torch.linspace(-1, 0, 5, dtype=torch.float64), torch.linspace(1, 0.5, 5, dtype=torch.float64)
    yield Case(aten.clamp.Tensor, (x, *bounds), **bounded)
    yield Case(aten.clamp.Tensor, (x, None, bounds[1]), **bounded, note="max only")
    yield Case(aten.clamp_min.Tensor, (x, bounds[0]), **bounded)
    yield Case(aten.clamp_max.Tensor, (x, bounds[1]), **bounded)
    # Linearised: by half the curvature the mean is off, by 0.75 √v/μ of the deviation at most (rsqrt, reciprocal: 1).
    away = s.random(4, 5, mean=4.0, spread=0.3, var=0.005)
    narrow = {"bias": (0.03, 0.01), "mean_scales": (1.0, 1e3), "var_scales": (1e-8, 1e-3, 1.0, 10.0)}
    for op in (aten.log, aten.log1p, aten.log2, aten.log10, aten.reciprocal, aten.rsqrt, aten.sqrt):
        yield Case(op.default, (away,), **narrow)
    within = s.random(4, 5, mean=0.3, spread=0.05, var=1e-4)
    in_domain = {"bias": (0.04, 0.01), "mean_scales": (1.0,), "var_scales": (1e-8, 1e-3, 1.0)}
    for op in (aten.acos, aten.asin, aten.atanh, aten.erfinv, aten.logit, aten.tan):
        yield Case(op.default, (within,), **in_domain)
    yield Case(aten.pow.Tensor_Scalar, (away, 1.5), **narrow, note="1.5")
    for op in (aten.softshrink, aten.hardshrink):
        yield Case(op.default, (x, 0.7), **bounded, mean_scales=(1.0, 1e3))
    yield Case(aten.sinc.default, (x,), samples=40_000, mean_scales=(1e-3, 1.0), var_scales=(1e-8, 1e-3, 1.0))
    for op in (aten.acosh, aten.digamma, aten.lgamma):
        yield Case(op.default, (away,), **{**in_domain, "bias": (0.05, 0.02)})
    yield Case(aten.frac.default, (within,), **in_domain)
    yield Case(aten.glu.default, (s.random(3, 6),), **bounded)
    yield Case(aten.glu.default, (s.random(4, 3), 0), **bounded, note="dim 0")


def written_out() -> Iterator[Case]:
    s = Source("written out")
    x, c, d = s.random(3, 5), s.constant(5), s.positive(3, 5)

    def tanh_gelu(x: Any) -> Any:
        cubic = aten.mul.Tensor(aten.pow.Tensor_Scalar(x, 3), 0.044715)
        inner = aten.tanh.default(aten.mul.Tensor(aten.add.Tensor(x, cubic), math.sqrt(2 / math.pi)))
        return aten.mul.Tensor(aten.mul.Tensor(x, 0.5), aten.add.Tensor(inner, 1.0))

    def gated(x: Any, c: Any) -> Any:
        return aten.mul.Tensor(aten.add.Tensor(x, c), aten.sigmoid.default(aten.mul.Tensor(x, 1.3)))

    def affine(x: Any, c: Any, d: Any) -> Any:
        return aten.div.Tensor(aten.sub.Tensor(aten.rsub.Scalar(x, 2.0), c), d)

    def itself_twice(x: Any) -> Any:
        return aten.sub.Tensor(aten.add.Tensor(x, x, alpha=2), aten.neg.default(x))

    def square(x: Any, c: Any) -> Any:
        return aten.mul.Tensor(x, aten.add.Tensor(x, c))

    def rows_by_group(x: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
        group = torch.searchsorted(offsets, torch.arange(x.shape[-2]), right=True)
        return (x.unsqueeze(-2) @ weight[..., group, :, :]).squeeze(-2)

    yield Case(functions.elementwise, (fx.symbolic_trace(tanh_gelu), x), samples=40_000, note="tanh-GELU")
    yield Case(functions.elementwise, (fx.symbolic_trace(gated), x, c), samples=40_000, note="gated")
    yield Affine(functions.elementwise, (fx.symbolic_trace(affine), x, c, d), note="affine")
    yield Affine(functions.elementwise, (fx.symbolic_trace(itself_twice), x), note="x + 2x + x")
    yield Case(functions.elementwise, (fx.symbolic_trace(square), x, c), samples=40_000, note="x (x + c)")
    yield Affine(functions.spread, (s.random(2, 6), [2, 2, 4], [6, 2, 1]))
    yield Affine(functions.grouped_matmul, (rows_by_group, s.random(4, 3), s.random(3, 3, 2), torch.tensor([1, 1, 4])))
    yield Affine(functions.residual_linear, (s.random(2, 5), s.random(5, 5), s.random(5)))
    yield Affine(functions.residual_linear, (s.random(2, 5), s.constant(5, 5)), note="constant weight")
    yield Affine(functions.residual_linear, (s.constant(2, 5), s.random(5, 5), s.constant(5)), note="random weight")
    yield Affine(functions.residual_linear, (s.constant(2, 5), s.constant(5, 5), s.random(5)), note="random bias")
    # −x + x = 0 exactly: the diagonal of I + W vanishes.
    yield Affine(functions.residual_linear, (s.random(2, 3), -torch.eye(3, dtype=torch.float64)), note="cancelling")


def normalization() -> Iterator[Case]:
    s = Source("normalization")
    size = 256
    # s² moves with each entry: y_d is less steep in x_d by 1 − y_d²/D, its variance smaller by 2 y_d²/D, |y_d| < 3.
    loose = {"bias": (0.01, 18 / size), "samples": 10_000}
    x, weight, bias = s.random(2, size), s.random(size), s.random(size)
    yield Case(aten.layer_norm.default, (x, [size], weight, bias), **loose)
    yield Case(aten.layer_norm.default, (x, [size], None, None, 0.1), **loose, note="no affine part")
    yield Case(aten.layer_norm.default, (x, [size], weight.mean, bias.mean, 1e-5, False), **loose, note="random x")
    yield Affine(aten.layer_norm.default, (x.mean, [size], weight, bias.mean), note="random weight")
    yield Affine(aten.layer_norm.default, (x.mean, [size], None, bias), note="random bias")
    yield Case(aten.layer_norm.default, (s.random(2, 8, 32), [8, 32], s.random(8, 32)), **loose, note="two dims")
    yield Case(aten.rms_norm.default, (x, [size], weight, 1e-3), **loose)
    # ε is that of the dtype: float32 and float64 differ where it matters, at small means.
    own_eps = {**loose, "mean_scales": (1.0, 1e3)}
    yield Case(aten.rms_norm.default, (x, [size]), **own_eps, note="eps of the dtype")
    yield Affine(aten.rms_norm.default, (x.mean, [size], weight), note="random weight")
    yield Case(aten.rms_norm.default, (s.random(2, 8, 32), [8, 32]), **own_eps, note="two dims")
    image, gain, shift = s.random(1, 4, 16, 8), s.random(4), s.random(4)
    yield Case(aten.group_norm.default, (image, 2, gain, shift), **loose)
    yield Case(aten.group_norm.default, (image, 2), **loose, note="no affine part")
    yield Affine(aten.group_norm.default, (image.mean, 4, gain, shift.mean), note="random weight")
    wide = s.random(1, 3, 16, 16)
    per_channel = s.random(3), s.random(3)
    yield Case(aten.instance_norm.default, (wide, *per_channel, None, None, True, 0.1, 1e-5, False), **loose)
    yield Case(
        aten.instance_norm.default,
        (wide, None, None, None, None, True, 0.1, 1e-5, False),
        **loose,
        note="no affine part",
    )
    running = s.constant(3), s.positive(3)
    yield Affine(
        aten.instance_norm.default,
        (s.random(2, 3, 5), *per_channel, *running, False, 0.1, 1e-5, False),
        note="running statistics",
    )
    yield Case(functions.rms_normalize, (x, (-1,), 1e-6), **loose)
    yield Case(functions.rms_normalize, (wide, (2, 3), 1e-6), **loose, note="filter response norm")
    yield Case(functions.standardize, (x, (-1,), 1e-5), **loose)
    yield Case(functions.unit_length, (x, (-1,)), **loose)
    yield Case(functions.unit_length, (x, (-1,), 1e-6), **loose, note="inside")
    yield Case(functions.unit_length, (wide, (2, 3), 0.0, 1e-6), **loose, note="outside")
    yield Case(functions.unit_length, (wide, (1, 2, 3), 0.0, 0.0, 40.0), **loose, note="least")
    yield Case(aten._weight_norm.default, (x, s.random(2, 1), 0), **loose)
    yield Case(aten._weight_norm.default, (s.random(3, 16, 2, 16), s.random(1, 1, 2, 1), 2), **loose, note="dim 2")
    yield Case(aten._weight_norm.default, (x, s.constant(), -1), **loose, note="of all entries")
    yield Affine(aten._weight_norm.default, (x.mean, s.random(2, 1), 0), note="random g")
    batch_norm = aten._native_batch_norm_legit_no_training.default
    yield Affine(batch_norm, (s.random(2, 3, 2, 3), *per_channel, *running, 0.1, 1e-5))
    yield Affine(batch_norm, (s.random(4, 3), None, None, *running, 0.1, 1e-3), note="no affine part")
    yield Affine(batch_norm, (s.constant(4, 3), per_channel[0], None, *running, 0.1, 1e-3), note="random weight")
    yield Affine(batch_norm, (s.constant(4, 3), s.constant(3), per_channel[1], *running, 0.1, 1e-3), note="random bias")


def length() -> Iterator[Case]:
    s = Source("length")
    x, y = s.random(2, 3, 8), s.random(2, 4, 8)
    # A norm's square as a gamma variable: exact for means of 0 and equal variances, and for small variances.
    gamma = {"bias": (0.02, 0.04), "samples": 40_000}
    exact = {"samples": 40_000}
    norm = aten.linalg_vector_norm.default
    centred = Moments(torch.full((3, 2), 0.01, dtype=torch.float64), torch.ones(3, 2, dtype=torch.float64))
    yield Case(norm, (x, 2, [-1]), **gamma)
    yield Case(norm, (x, 2, [0, 1], True), **gamma, note="two dims")
    yield Case(norm, (x,), **gamma, note="all dims")
    yield Case(norm, (centred, 2, [1]), bias=0.002, samples=40_000, note="means of 0")
    yield Case(norm, (x, 1, [1]), **exact, note="order 1")
    far = s.random(3, 4, mean=-4.0)
    yield Case(norm, (far, torch.inf, [1]), **clark(4), note="largest")
    yield Case(norm, (far, -torch.inf, [1], True), **clark(4), note="smallest")
    narrow = Moments(x.mean, 1e-4 * x.var)
    delta = {"bias": (0.05, 0.02), "mean_scales": (1.0,), "var_scales": (1e-8, 1e-3, 1.0)}
    yield Case(norm, (narrow, 3.0, [0, 2]), **delta, note="order 3")
    yield Case(norm, (narrow, 1.5, [-1], True), **delta, note="order 1.5")
    for name in ("var", "std"):
        op, with_mean, loose = getattr(aten, name), getattr(aten, f"{name}_mean"), exact if name == "var" else gamma
        yield Case(op.default, (x,), **loose)
        yield Case(op.dim, (x, [2], False), **loose)
        yield Case(op.dim, (x, [0, 2], True, True), **loose, note="two dims")
        yield Case(op.correction, (x, [-1]), {"correction": 0, "keepdim": True}, **loose)
        yield Case(op.correction, (x,), **loose, note="all dims")
        yield Case(with_mean.dim, (x, [-1]), **loose)
        yield Case(with_mean.correction, (x, [-1]), {"correction": 0}, **loose)
    yield Case(aten.cdist.default, (x, y), **gamma)
    yield Case(aten.cdist.default, (x, y.mean, 1.0), **exact, note="order 1")
    yield Case(aten.pairwise_distance.default, (s.random(3, 8), s.random(3, 8)), **gamma)
    yield Case(aten.pairwise_distance.default, (s.constant(3, 8), s.random(3, 8), 2.0, 0.1, True), **gamma, note="eps")
    wide, other = s.random(2, 256, var=0.2), s.random(2, 256, var=0.2)
    frozen = {"bias": (0.02, 0.02), "samples": 10_000}
    yield Case(aten.cosine_similarity.default, (wide, other), **frozen)
    yield Case(aten.cosine_similarity.default, (wide, wide.mean + 0.5 * other.mean), **frozen, note="alike")
    yield Case(aten.cosine_similarity.default, (s.constant(256, 1), s.random(256, 3), 0), **frozen, note="broadcast")
    yield Case(aten.cosine_similarity.default, (s.random(3, 256), s.random(256)), **frozen, note="one for all")


def attention() -> Iterator[Case]:
    """Random values: the rule is exact there. What it does with random queries and keys has a test of its own."""
    s = Source("attention")
    op = aten.scaled_dot_product_attention.default
    q, k, v = s.constant(2, 3, 4, 5), s.constant(2, 3, 6, 5), s.random(2, 3, 6, 2)
    yield Affine(op, (q, k, v))
    mask = s.mask(4, 6)
    mask[:, 0] = True
    yield Affine(op, (q, k, v, mask), note="bool mask")
    blind = mask.clone()
    blind[1] = False
    yield Affine(op, (q, k, v, blind), note="fully masked row")
    yield Affine(op, (q, k, v, s.constant(2, 1, 4, 6)), note="float mask")
    infinite = torch.zeros(4, 6, dtype=torch.float64).masked_fill(~blind, -math.inf)
    yield Affine(op, (q, k, v, infinite), note="float mask, fully masked row")
    yield Affine(op, (q, k, v, None, 0.0, True), note="causal")
    yield Affine(op, (q, k, v), {"scale": 0.1}, note="scale")
    few = s.constant(2, 2, 5, 3), s.random(2, 2, 5, 3)
    yield Affine(op, (s.constant(2, 4, 3, 3), *few), {"enable_gqa": True}, note="grouped queries")
    yield Affine(op, (s.constant(3, 4), s.constant(5, 4), s.random(5, 4)), note="no batch")
    x = s.random(3, 5)
    yield Certain(aten.softmax.int, (x, -1))
    yield Certain(aten.softmax.int, (x, 0, torch.float64), note="dtype")
    yield Certain(aten._softmax.default, (x, 1, False))
    masked = Moments(x.mean.masked_fill(torch.tensor([True, False, False])[:, None], -math.inf), x.var)
    yield Certain(aten._safe_softmax.default, (masked, -1), note="fully masked row")
    # Linearised: the mean is off by ½ Σ p(1 − p)v < v/2, where the deviation is √(Σ p²v) > √(v/15).
    narrow = {"bias": (0.5 * math.sqrt(15 * 5e-4), 0.002), "var_scales": (1e-8, 1e-3, 1.0)}
    small = s.random(3, 5, var=5e-4)
    yield Case(aten.log_softmax.int, (small, -1), **narrow)
    yield Case(aten.log_softmax.int, (small, 0, torch.float64), **narrow, note="dim 0")
    yield Case(aten.logsumexp.default, (small, [1]), **narrow)
    yield Case(aten.logsumexp.default, (small, [0, 1], True), **narrow, note="two dims")
    yield Case(aten.logaddexp.default, (small, s.random(5, var=5e-4)), **narrow)
    yield Case(aten.logaddexp.default, (s.constant(3, 1), s.random(5, var=5e-4)), **narrow, note="constant first")


def reduction() -> Iterator[Case]:
    s = Source("reduction")
    x = s.random(2, 3, 5)
    yield Affine(aten.sum.default, (x,))
    yield Affine(aten.mean.default, (x,))
    for op in (aten.sum.dim_IntList, aten.mean.dim):
        yield Affine(op, (x, [1]))
        yield Affine(op, (x, [0, -1], True), note="two dims")
        yield Affine(op, (x, None, True), note="all dims")
        yield Affine(op, (x, []), note="empty dims")
    yield Affine(aten.sum.dim_IntList, (x, [1]), {"dtype": torch.float64}, note="dtype")
    yield Affine(aten.cumsum.default, (x, 1))
    yield Case(aten.prod.default, (s.random(3, mean=2.0, var=0.1),))
    yield Case(aten.prod.dim_int, (x, 1, True))
    yield Case(aten.cumprod.default, (x, 1))
    yield Case(aten.prod.dim_int, (x, 0), note="dim 0")
    yield Affine(aten.diff.default, (x, 1, 1))
    comparisons = ("eq", "ne", "gt", "ge", "lt", "le")
    for overload in (getattr(aten, name) for name in comparisons):
        yield Certain(overload.Scalar, (x, 0.0))
        yield Certain(overload.Tensor, (x, s.random(3, 1)))
    for op in (aten.argmax, aten.argmin, aten.argsort):
        yield Certain(op.default, (x, 1))
    yield Certain(aten.argsort.stable, (x,), {"stable": True, "dim": 1})
    yield Certain(aten.floor_divide.default, (x, 0.3))
    for op in (aten.logical_and, aten.logical_or, aten.logical_xor):
        yield Certain(op.default, (x, s.constant(5)))
    for op in (aten.all, aten.any):
        yield Certain(op.dim, (x, 1))
    for op in (
        *(aten.all, aten.any, aten.ceil, aten.floor, aten.isfinite, aten.isinf, aten.isnan, aten.logical_not),
        *(aten.ones_like, aten.round, aten.sgn, aten.signbit, aten.trunc, aten.zero, aten.zeros_like),
    ):
        yield Certain(op.default, (x,))
    yield Certain(aten.full_like.default, (x, 2.0))
    yield Certain(aten.new_ones.default, (x, [2, 3]))
    yield Certain(aten.new_zeros.default, (x, [2, 3]))
    yield Certain(aten.new_full.default, (x, [2, 3], 1.5))
    yield Certain(aten.fill.Scalar, (x, 1.5))


def maxima() -> Iterator[Case]:
    s = Source("maxima")
    x, y, row = (s.random(*shape, spread=0.5) for shape in ((3, 5), (3, 5), (5,)))
    for op in (
        aten.maximum.default,
        aten.max.other,
        aten.minimum.default,
        aten.min.other,
        aten.fmax.default,
        aten.fmin.default,
    ):
        yield Case(op, (x, y), samples=40_000)
        yield Case(op, (row, x), samples=40_000, note="broadcast")
        yield Case(op, (x, y.mean), samples=40_000, note="constant")
        yield Case(op, (0.5 * s.constant(3, 1), row), samples=40_000, note="constant first")
    z = s.random(3, 4, 3)
    for op in (aten.amax.default, aten.amin.default):
        yield Case(op, (z, [1]), **clark(4))
        yield Case(op, (z, [0, 2], True), **clark(9), note="two dims")
        yield Case(op, (z,), **clark(36), note="all dims")
    yield Case(aten.max.default, (z,), **clark(36))
    yield Case(aten.min.default, (z,), **clark(36))
    for op in (aten.max.dim, aten.min.dim):
        yield Case(op, (z, 1), **clark(4))
        yield Case(op, (z, -1, True), **clark(4), note="keepdim")


def clark(count: int) -> dict[str, Any]:
    """The error for maxima over so many entries; the rules admit more, for entries less alike than these."""
    return {"bias": (0.03, {4: 0.10, 9: 0.18, 36: 0.25}[count]), "samples": 40_000}


def pooling() -> Iterator[Case]:
    s = Source("pooling")
    x1, x2, x3 = s.random(2, 3, 7), s.random(2, 3, 7, 6), s.random(1, 2, 5, 4, 5)
    yield Affine(aten.avg_pool1d.default, (x1, [3]))
    yield Affine(aten.avg_pool1d.default, (x1, [3], [2], [1], True, False), note="padding not counted, ceil_mode")
    yield Affine(aten.avg_pool1d.default, (x1, [2], [2], [1], True), note="padding counted, ceil_mode")
    yield Affine(aten.avg_pool1d.default, (s.random(3, 7), [3], [2], [1]), note="no batch")
    yield Affine(aten.avg_pool2d.default, (x2, [3, 2]))
    yield Affine(
        aten.avg_pool2d.default, (x2, [3, 3], [2, 2], [1, 1], True, False), note="padding not counted, ceil_mode"
    )
    yield Affine(aten.avg_pool2d.default, (x2, [3, 2], [2, 1], [1, 0], True), note="padding counted, ceil_mode")
    yield Affine(aten.avg_pool2d.default, (x2, [2, 2], [2, 2], [0, 0], False, True, 3), note="divisor")
    yield Affine(aten.avg_pool2d.default, (s.random(3, 7, 6), [2], [], [1]), note="no batch")
    yield Affine(aten.avg_pool3d.default, (x3, [2, 2, 2]))
    yield Affine(
        aten.avg_pool3d.default,
        (x3, [3, 2, 3], [2, 2, 2], [1, 1, 1], True, False),
        note="padding not counted, ceil_mode",
    )
    for op, x, sizes in (
        (aten.adaptive_avg_pool1d.default, x1, ([3], [1])),
        (aten.adaptive_avg_pool2d.default, x2, ([3, 4], [1, 1], [7, 2])),
        (aten.adaptive_avg_pool3d.default, x3, ([2, 3, 2], [1, 1, 1])),
    ):
        for size in sizes:
            yield Affine(op, (x, size), note="x".join(map(str, size)))
    for op in (aten.upsample_bilinear2d.vec, aten.upsample_bicubic2d.vec):
        yield Affine(op, (s.random(2, 3, 4, 3), None, False, [2.0, 1.5]))
        yield Affine(op, (s.random(2, 3, 4, 3), [3, 7], True, None), note="align_corners")
    sampler, picture = aten.grid_sampler.default, s.random(2, 3, 4, 5)
    for corners in (False, True):
        yield Affine(sampler, (picture, 0.8 * s.constant(2, 3, 2, 2), 0, 0, corners), note=f"align_corners {corners}")
        yield Affine(aten.affine_grid_generator.default, (s.random(2, 2, 3), [2, 3, 4, 5], corners), note=str(corners))
    # Between the centres of pixels the result is bilinear in the position.
    offsets = Moments(torch.tensor([[[[-0.2, 0.1], [0.2, -0.1]]]], dtype=torch.float64), 1e-4 * s.positive(1, 1, 2, 2))
    near = {"bias": 0.02, "mean_scales": (1.0,), "var_scales": (1e-8, 1.0)}
    yield Case(sampler, (s.constant(1, 3, 4, 5), offsets, 0, 0, False), **near, note="random positions")
    for op in (aten._upsample_bilinear2d_aa.default, aten._upsample_bicubic2d_aa.default):
        yield Affine(op, (x2, [2, 9], False, None, None))
    yield Affine(aten._upsample_nearest_exact1d.default, (x1, [9]))
    yield Affine(aten._upsample_nearest_exact2d.default, (x2, [5, 9]))
    yield Affine(aten._upsample_nearest_exact3d.default, (x3, [3, 7, 6]))
    yield Affine(aten.upsample_linear1d.vec, (x1, None, False, [2.5]))
    yield Affine(aten.upsample_trilinear3d.vec, (x3, [3, 7, 6], True, None))
    yield Affine(aten.upsample_nearest1d.vec, (x1, None, [1.5]))
    yield Affine(aten.upsample_nearest2d.vec, (x2, [5, 9], None))
    yield Affine(aten.upsample_nearest3d.vec, (x3, None, [2.0, 1.0, 1.5]))
    # Where it is certain which is largest, it does not matter whether entries move together, as the rule has it; the
    # maximum is affine within half the distance of the entries.
    x1, x2, x3 = s.apart(2, 3, 7), s.apart(2, 3, 7, 6), s.apart(1, 2, 5, 4, 5)
    yield Affine(aten.max_pool1d.default, (x1, [2]))
    yield Affine(aten.max_pool1d.default, (x1, [3], [2], [1], [2], True), note="padding, dilation, ceil_mode")
    yield Affine(aten.max_pool2d.default, (x2, [2, 2]))
    yield Affine(aten.max_pool2d.default, (x2, [3, 3], [2, 2], [1, 1], [1, 1], True), note="padding, ceil_mode")
    yield Affine(aten.max_pool2d.default, (x2, [2, 3], [1, 2], [1, 0], [2, 1]), note="dilation")
    yield Affine(aten.max_pool2d.default, (s.apart(3, 7, 6), 2), note="no batch")
    yield Affine(aten.max_pool3d.default, (x3, [2, 2, 2], [2, 2, 2], [1, 0, 1], 1, True))
    for op, x in (
        (aten.max_pool1d_with_indices.default, x1),
        (aten.max_pool2d_with_indices.default, x2),
        (aten.max_pool3d_with_indices.default, x3),
    ):
        yield Affine(op, (x, [2]))
    for op, x, sizes in (
        (aten.adaptive_max_pool1d.default, x1, ([3], [1])),
        (aten.adaptive_max_pool2d.default, x2, ([3, 4], [1, 1])),
        (aten.adaptive_max_pool3d.default, x3, ([2, 3, 2], [1, 1, 1])),
    ):
        for size in sizes:
            yield Affine(op, (x, size), note="x".join(map(str, size)))


def structural() -> Iterator[Case]:
    s = Source("structural")
    x, y, c, image = s.random(2, 3, 4), s.random(2, 3, 4), s.constant(2, 3, 4), s.random(2, 4, 4, 6)
    single = s.random(1, 3, 1, 2)
    for op, args in (
        (aten.view.default, (x, [6, -1])),
        (aten._unsafe_view.default, (x, [6, 4])),
        (aten.reshape.default, (x, [4, 6])),
        (aten.alias.default, (x,)),
        (aten.atleast_3d.default, (s.random(2, 3),)),
        (aten.channel_shuffle.default, (image, 2)),
        (aten.chunk.default, (x, 2, 1)),
        (aten.clone.default, (x,)),
        (aten.contiguous.default, (x,)),
        (aten.detach.default, (x,)),
        (aten.diagonal.default, (x, 1, 1, 2)),
        (aten.dropout.default, (x, 0.5, False)),
        (aten.expand.default, (s.random(3, 1), [2, 3, 4])),
        (aten.flatten.using_ints, (x, 1)),
        (aten.flip.default, (x, [0, 2])),
        (aten.gather.default, (x, 1, s.integers(3, 2, 2, 4))),
        (aten.im2col.default, (image, [2, 3], [1, 1], [1, 0], [2, 1])),
        (aten.index_select.default, (x, 1, torch.tensor([2, 0, 2]))),
        (aten.permute.default, (x, [2, 0, 1])),
        (aten.pixel_shuffle.default, (image, 2)),
        (aten.pixel_unshuffle.default, (image, 2)),
        (aten.repeat.default, (x, [2, 1, 2])),
        (aten.repeat_interleave.self_int, (x, 2, 1)),
        (aten.roll.default, (x, [1], [2])),
        (aten.rot90.default, (x, 1, [1, 2])),
        (aten.select.int, (x, 1, -1)),
        (aten.slice.Tensor, (x, 2, 1, 4, 2)),
        (aten.split.Tensor, (x, 2, 1)),
        (aten.split_with_sizes.default, (x, [1, 3], 2)),
        (aten.squeeze.default, (single,)),
        (aten.squeeze.dim, (single, 0)),
        (aten.squeeze.dims, (single, [0, 2])),
        (aten.t.default, (s.random(2, 3),)),
        (aten.take_along_dim.default, (x, s.integers(4, 2, 3, 2), 2)),
        (aten.tile.default, (x, [2])),
        (aten.transpose.int, (x, 0, 2)),
        (aten.tril.default, (x, -1)),
        (aten.triu.default, (x, 1)),
        (aten.unbind.int, (x, 1)),
        (aten.unfold.default, (x, 2, 2, 1)),
        (aten.unsqueeze.default, (x, 1)),
    ):
        yield Affine(op, args)
    yield Affine(aten.cat.default, ([x, c, y], -1), note="random and constant")
    yield Affine(aten.cat.default, ([s.integers(9, 2, 2), s.random(2, 3)], 1), note="integers")
    yield Affine(aten.stack.default, ([c, x], 1))
    yield Affine(aten.concat.default, ([x, c], 1))
    yield Affine(aten.concatenate.default, ([c, x], 1))
    for op in (aten.hstack, aten.vstack, aten.dstack):
        yield Affine(op.default, ([x, c],))
    yield Affine(aten.broadcast_tensors.default, ([s.random(3, 1), s.constant(2)],))
    yield Affine(aten.masked_scatter.default, (x, s.mask(2, 3, 4), y))
    yield Affine(aten.masked_scatter.default, (c, s.mask(3, 4), y), note="random source")
    places = torch.tensor([[[[0, 3], [12, 15]]]])
    yield Affine(aten.max_unpool2d.default, (s.random(1, 1, 2, 2), places, [4, 4]))
    yield Affine(aten.max_unpool3d.default, (s.random(1, 1, 1, 2, 2), places[None], [1, 4, 4], [1, 2, 2], [0, 0, 0]))
    yield Affine(aten.nan_to_num.default, (x,))
    yield Affine(aten.meshgrid.indexing, ([s.random(3), s.constant(2)],), {"indexing": "ij"})
    yield Affine(aten.copy.default, (c, s.random(3, 1)))
    yield Certain(aten.copy.default, (x, s.integers(9, 3, 4)), note="constant source")
    yield Affine(aten.fill.Tensor, (x, s.random()))
    yield Certain(aten.fill.Tensor, (x, s.constant()), note="constant value")
    yield Affine(aten.index.Tensor, (x, [None, torch.tensor([2, 0]), torch.tensor([[1], [3]])]))
    yield Affine(aten.index.Tensor, (x, [s.mask(2, 3)]), note="mask")
    put = [None, torch.tensor([2, 0])]
    yield Affine(aten.index_put.default, (x, put, s.random(2, 2, 4)))
    yield Affine(aten.index_put.default, (x, put, s.constant(2, 2, 4)), note="constant values")
    yield Affine(aten.index_put.default, (c, [None, torch.tensor([1, 1])], s.random(2, 2, 4), True), note="accumulate")
    yield Affine(aten.scatter.src, (x, 1, s.integers(3, 2, 1, 4), c))
    yield Affine(aten.scatter.src, (c, 1, s.integers(3, 2, 1, 4), s.random(2, 1, 4)), note="random source")
    yield Affine(aten.select_scatter.default, (x, s.constant(2, 4), 1, 0))
    yield Affine(aten.select_scatter.default, (c, s.random(2, 4), 1, 0), note="random source")
    yield Affine(aten.slice_scatter.default, (x, s.random(2, 3, 2), 2, 1, 3))
    yield Affine(
        aten.embedding.default, (s.random(5, 3), torch.tensor([[1, 4, 1], [0, 0, 2]])), note="repeated indices"
    )
    yield Affine(aten._to_copy.default, (x,), {"dtype": torch.float64})
    yield Certain(aten._to_copy.default, (x,), {"dtype": torch.int64}, note="to integers")
    yield Affine(aten.to.dtype, (x, torch.float64))
    yield Affine(aten.type_as.default, (x, y))
    yield Certain(aten.type_as.default, (x, s.integers(9, 2)), note="to integers")
    mask = s.mask(3, 4)
    yield Affine(aten.masked_fill.Scalar, (x, mask, -2.0))
    yield Affine(aten.masked_fill.Tensor, (x, mask, s.constant()))
    yield Affine(aten.masked_fill.Tensor, (x, mask, s.random()), note="random value")
    yield Affine(aten.masked_fill.Tensor, (c, mask, s.random()), note="only the value random")
    yield Affine(aten.where.self, (s.mask(2, 1, 4), x, s.random(3, 1)), note="broadcast")
    yield Affine(aten.where.self, (s.mask(5, 1, 1, 1), x, c), note="broadcast by the condition")
    yield Affine(aten.where.self, (mask, c, x), note="constant first")
    yield Affine(aten.where.ScalarOther, (mask, x, 1.5))
    yield Affine(aten.where.ScalarSelf, (mask, 1.5, x))
    yield Affine(aten.pad.default, (x, [1, 2]))
    yield Affine(aten.pad.default, (x, [1, 2], "constant", 3.0), note="value")
    yield Affine(aten.pad.default, (x, [1, 2], "constant", None), note="value None")
    yield Affine(aten.pad.default, (x, [1, 2], "reflect"), note="reflect")
    yield Affine(aten.positive.default, (x,))
    for dims in (1, 2, 3):
        for kind in ("reflection", "replication"):
            padded = s.random(1, *[3] * (dims + 1))
            yield Affine(getattr(aten, f"{kind}_pad{dims}d").default, (padded, [1, 2] * dims))
    yield Affine(aten.pad.default, (x, [1, 2], "replicate"), note="replicate")
    yield Affine(aten.pad.default, (x, [1, 2], "circular"), note="circular")
    yield Affine(aten.constant_pad_nd.default, (x, [1, 0, 0, 2], 0.5))
    yield Affine(aten.constant_pad_nd.default, (x, [-1, 2]), note="cropped")


def scatter() -> Iterator[Case]:
    s = Source("scatter")
    x, source, c = s.random(4, 3), s.random(5, 3), s.constant(4, 3)
    rows, places = torch.tensor([0, 2, 2, 3, 0]), s.integers(4, 5, 3)
    yield Affine(aten.scatter_add.default, (x, 0, places, source))
    yield Affine(aten.scatter_add.default, (c, 0, places, source), note="constant first")
    yield Affine(aten.index_add.default, (x, 0, rows, source), {"alpha": -2})
    yield Affine(aten.index_add.default, (c, 0, rows, source), note="constant first")
    for reduce in ("sum", "mean"):
        yield Affine(aten.scatter_reduce.two, (x, 0, places, source, reduce), note=reduce)
        alone = {"include_self": False}
        yield Affine(aten.scatter_reduce.two, (c, 0, places, source, reduce), alone, note=f"{reduce}, self excluded")
    apart, far = s.apart(4, 3), s.apart(5, 3)
    near = {"mean_scales": (1.0,), "var_scales": (1e-8, 1e-3, 1.0)}
    for reduce in ("amax", "amin"):
        yield Case(aten.scatter_reduce.two, (apart, 0, places, far, reduce), **near, note=reduce)
    yield Affine(aten.index_reduce.default, (x, 0, rows, source, "mean"))
    yield Case(aten.index_reduce.default, (apart, 0, rows, far, "amax"), **near, note="amax")
    yield Affine(aten.col2im.default, (s.random(2, 6, 9), [4, 5], [2, 3], [1, 1], [0, 0], [1, 1]))
    weight, indices, offsets = s.random(5, 3), torch.tensor([1, 4, 1, 0, 2]), torch.tensor([0, 3])
    for mode, name in enumerate(("sum", "mean")):
        options = (False, mode, False, None, False)
        yield Affine(aten.embedding_bag.default, (weight, indices, offsets, *options), note=name)
        yield Affine(aten.embedding_bag.padding_idx, (weight, indices, offsets, *options, 4), note=f"{name}, padding")
    yield Affine(
        aten.embedding_bag.default,
        (weight, indices, torch.tensor([0, 3, 5]), False, 0, False, s.constant(5), True),
        note="weighted, last offset",
    )


def several() -> Iterator[Case]:
    """Linearised: means of about 2 and deviations of 0.02."""
    s = Source("several")
    x, y, z, c = (s.random(3, 4, mean=2.0, spread=0.2, var=4e-4) for _ in range(4))
    narrow = {"bias": (0.05, 0.02), "mean_scales": (1.0,), "var_scales": (1e-8, 1e-3, 1.0)}
    for op in (aten.atan2, aten.hypot, aten.logaddexp2, aten.special_xlog1py):
        yield Case(op.default, (x, y), **narrow)
        yield Case(op.default, (c.mean, y), **narrow, note="constant first")
    for op in (aten.xlogy.Tensor, aten.pow.Tensor_Tensor, aten.copysign.Tensor):
        yield Case(op, (x, y), **narrow)
        yield Case(op, (x, c.mean), **narrow, note="constant second")
    yield Case(aten.pow.Scalar, (3.0, y), **narrow)
    yield Case(aten.xlogy.Scalar_Self, (3.0, y), **narrow)
    yield Case(aten.xlogy.Scalar_Other, (x, 3.0), **narrow)
    yield Case(aten.copysign.Scalar, (x, -1.0), **narrow)
    yield Case(aten.addcdiv.default, (x, y, z), {"value": 0.5}, **narrow)


def complex_numbers() -> Iterator[Case]:
    s = Source("complex numbers")
    real, z, w, c = s.random(3, 6), s.random(3, 6, 2), s.random(6, 2), s.constant(3, 6, 2)
    both, first, second = {"complex_args": (0, 1)}, {"complex_args": (0,)}, {"complex_args": (1,)}
    for size in (5, 6):  # with and without a highest frequency
        line = s.random(3, size)
        for onesided in (True, False):
            yield Affine(aten._fft_r2c.default, (line, [1], 0, onesided), note=f"{size}, onesided {onesided}")
        yield Affine(aten._fft_c2r.default, (s.random(2, size // 2 + 1, 2), [1], 2, size), **first, note=f"{size}")
    plane = s.random(2, 4, 3, 5)
    yield Affine(aten._fft_r2c.default, (plane, [1, 3], 1, True), note="two dims")
    yield Affine(aten._fft_c2r.default, (s.random(2, 4, 3, 2), [0, 1], 1, 7), **first, note="two dims")
    for forward in (True, False):
        yield Affine(aten._fft_c2c.default, (s.random(2, 3, 5, 2), [1, 2], 2, forward), **first, note=f"{forward}")
    for op in (aten._conj, aten.conj_physical, aten.resolve_conj):
        yield Affine(op.default, (z,), **first)
    yield Affine(aten.view_as_real.default, (z,), **first)
    yield Affine(aten.view_as_complex.default, (z,))
    yield Affine(aten.complex.default, (real, s.random(6)))
    yield Affine(aten.complex.default, (s.constant(3, 6), real), note="constant")
    yield Affine(aten.add.Tensor, (z, w), {"alpha": 2}, **both, note="complex")
    yield Affine(aten.sub.Tensor, (real, w), **second, note="real and complex")
    yield Affine(aten.mul.Tensor, (z, w), **both, note="complex")
    yield Affine(aten.mul.Tensor, (z, c), **both, note="complex constant")
    yield Affine(aten.mul.Tensor, (c, w), **both, note="complex constant first")
    yield Affine(aten.mul.Tensor, (real, c), **second, note="real by complex constant")
    yield Affine(aten.mul.Tensor, (z, real), **first, note="complex by real")
    yield Affine(aten.mul.Tensor, (z, 2 - 1j), **first, note="complex number")
    yield Affine(aten.div.Tensor, (z, c), **both, note="complex constant")
    yield Affine(aten.matmul.default, (s.random(3, 4, 2), s.random(4, 2, 2)), **both, note="complex")
    yield Affine(aten.mean.dim, (z, [1]), **first, note="complex")
    yield Affine(aten._to_copy.default, (real,), {"dtype": torch.complex128}, note="to complex")
    near = {"mean_scales": (1.0,), "var_scales": (1e-8, 1e-3, 1.0)}
    far = Moments(2.0 + 0.2 * s.constant(3, 4, 2), 4e-4 * s.positive(3, 4, 2))
    yield Case(functions.modulus, (far,), **near, **first)
    yield Case(functions.argument, (far,), **near, **first)


def order() -> Iterator[Case]:
    s = Source("order")
    x = s.apart(3, 4, 5)
    yield Affine(aten.sort.default, (x,))
    yield Affine(aten.sort.default, (x, 1, True), note="descending")
    yield Affine(aten.sort.stable, (x,), {"stable": True, "dim": 0})
    yield Affine(aten.topk.default, (x, 2))
    yield Affine(aten.topk.default, (x, 2, 1, False), note="smallest")
    yield Affine(aten.median.default, (x,))
    yield Affine(aten.median.dim, (x, 1))
    yield Affine(aten.median.dim, (x, -1, True), note="keepdim")
    yield Affine(aten.kthvalue.default, (x, 2, 0))


FAMILIES = (
    arithmetic,
    linear,
    convolution,
    activation,
    written_out,
    normalization,
    length,
    attention,
    reduction,
    maxima,
    pooling,
    structural,
    scatter,
    several,
    complex_numbers,
    order,
)
CASES: list[Case] = [case for family in FAMILIES for case in family()]
"""One or several for each op of CVP and STREAMLINING."""

PAIRS: list[tuple[vp.RuleSet, Case]] = [(vp.CVP, case) for case in CASES] + [
    (vp.STREAMLINING, case) for case in CASES if vp.STREAMLINING[case.op] is not vp.CVP[case.op]
]
"""Every case with every rule that it is a case of."""
