"""The rules of ``FACTORED``: layers, norms and attention without matrix products of variances.

E[W²] and Σ_W of a layer are replaced by sums of ``rank`` outer products. The variance of its output is then a few
numbers for each token times fixed vectors, and stays so through sums, norms and attention: see ``Factored``. Other
rules, of activations above all, get it multiplied out.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from varprop.moments import Factored, Moments, is_random, mean_of, multiplied_out
from varprop.rules import arithmetic, attention, functions, linear, normalization
from varprop.rules.arithmetic import second_moment
from varprop.rules.factorization import LEAST, as_terms, broadened, factor, joined, misfit, varies
from varprop.rules.ruleset import Backend, Op, Rule, RuleSet, rule

aten = torch.ops.aten

Apply = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""A layer with its other arguments: of x, weight and bias."""


# --- sums and products -----------------------------------------------------------------------------------


@rule(aten.add.Tensor, aten.add.Scalar, approximation=None, factored=True)
def add(x: Any, y: Any, alpha: float = 1) -> Any:
    """z = x + αy: Σz = Σx + α² Σy, term by term."""
    if not any(isinstance(each, Factored) for each in (x, y)):
        return arithmetic.add(x, y, alpha=alpha)
    mean = torch.add(mean_of(x), mean_of(y), alpha=alpha)
    terms = [as_terms(each, mean) for each in (x, y) if is_random(each)]
    if is_random(y) and alpha != 1:
        terms[-1] = terms[-1].map_var(lambda var: alpha * alpha * var)
    rests = [term.rest for term in terms if term.rest is not None]
    coefficients, vectors = joined([term.coefficients for term in terms]), joined([term.vectors for term in terms])
    return Factored(mean, coefficients, vectors, functools.reduce(torch.add, rests) if rests else None)


@rule(aten.sub.Tensor, aten.sub.Scalar, approximation=None, factored=True)
def subtract(x: Any, y: Any, alpha: float = 1) -> Any:
    """z = x − αy."""
    return add(x, y, alpha=-alpha)


def _random_factor(x: Any, y: Any) -> str | None:
    return "of μx² Σy only the sum over features is exact" if is_random(x) and is_random(y) else None


@rule(aten.mul.Tensor, aten.mul.Scalar, approximation=_random_factor, factored=True)
def multiply(x: Any, y: Any) -> Any:
    """z = x·y: Σz = Σx E[y²] + μx² Σy, where y varies as only one factor of Σx does."""
    if isinstance(y, Factored):
        x, y = y, x
    if not isinstance(x, Factored) or isinstance(y, Factored):
        return arithmetic.multiply(*multiplied_out((x, y)))
    mean, square = x.mean * mean_of(y), second_moment(y)
    if not isinstance(square, Tensor):
        return x.map_var(lambda var: var * square)._replace(mean=mean)
    square = broadened(square, mean.ndim)
    spanned = [d for d in range(mean.ndim) if varies(square, d)]
    own = [all(not varies(other, d + 1) for d in spanned) for other in (x.coefficients, x.vectors)]
    if not any(own) or mean.ndim != x.mean.ndim:
        return arithmetic.multiply(*multiplied_out((x, y)))
    factors = (x.coefficients, x.vectors * square) if own[0] else (x.coefficients * square, x.vectors)
    result = Factored(mean, *factors, None if x.rest is None else x.rest * square)
    return result if not is_random(y) else _with_noise_of_factor(result, x.mean, broadened(y.var, mean.ndim), spanned)


def _with_noise_of_factor(result: Factored, mean: Tensor, noise: Tensor, spanned: list[int]) -> Factored:
    """With μx² Σy added: as a product that has the same sum, if y is a vector of features."""
    added = mean * mean * noise
    if spanned != [mean.ndim - 1]:
        return result._replace(rest=added if result.rest is None else result.rest + added)
    amount, share = added.sum(-1, keepdim=True), noise / noise.sum().clamp_min(LEAST)
    return result._replace(
        coefficients=joined([result.coefficients, amount[None]]), vectors=joined([result.vectors, share[None]])
    )


@rule(aten.div.Tensor, aten.div.Scalar, approximation=arithmetic.divide.approximation, factored=True)
def divide(x: Any, y: Any) -> Any:
    """z = x/y: a constant divisor is a factor."""
    if isinstance(x, Factored) and not is_random(y):
        return multiply(x, 1 / y)
    return arithmetic.divide(*multiplied_out((x, y)))


# --- layers ----------------------------------------------------------------------------------------------


def _layer(apply: Apply, x: Any, weight: Any, bias: Any, rank: int, feature: int, backend: Backend) -> Factored:
    """y = W x + b with E[W²] ≈ Σ_k a_k b_kᵀ, Σ_W ≈ Σ_k r_k c_kᵀ: Σ = Σ_k a_k (b_k·Σx) + r_k (c_k·μx²) + Σ_b."""
    mean = apply(mean_of(x), mean_of(weight), mean_of(bias))
    shape, vectors, rights = mean_of(weight).shape[1:], [], list[Tensor | None]()
    for matrix in (second_moment(weight) if is_random(x) else None, weight.var if is_random(weight) else None):
        pair = None if matrix is None else factor(matrix.flatten(1), rank)
        rights.append(None if pair is None else pair[1].reshape(rank, *shape))
        vectors += [] if pair is None else [pair[0]]
    vectors += [bias.var[None]] if is_random(bias) else []
    place = feature % mean.ndim + 1
    coefficients = backend.contract(apply, x, *rights, is_random(bias), feature).movedim(feature, 0).unsqueeze(place)
    joint = torch.cat(vectors)
    sizes = [len(joint), *(-1 if d == place else 1 for d in range(1, mean.ndim + 1))]
    return Factored(mean, coefficients, joint.reshape(sizes))


def contract(apply: Apply, x: Any, by_var: Tensor | None, by_square: Tensor | None, ones: bool, feature: int) -> Tensor:
    """Σ_d Σx[d] by_var[k, d], then Σ_d μx[d]² by_square[k, d], then 1 if asked for: in the place of features."""
    parts = [] if by_var is None else [_contracted(apply, x, by_var)]
    if by_square is not None:
        parts.append(apply(mean_of(x).square(), by_square, None))
    if ones:
        parts.append(torch.ones_like(parts[0].narrow(feature, 0, 1)))
    if feature == -1:
        return torch.cat(parts, feature)
    return torch.cat([part.movedim(feature, 0) for part in parts]).movedim(0, feature)  # each without gaps


def _contracted(apply: Apply, x: Any, right: Tensor) -> Tensor:
    """Σ_d var[..., d] right[k, d], in the place of features."""
    if isinstance(x, Moments) or varies(x.coefficients, -1) or right.ndim > 2:
        return apply(x.var, right, None)
    result = (x.coefficients * apply(x.vectors, right, None)).sum(0)
    return result if x.rest is None else result + apply(x.rest, right, None)


def _layer_rule(op: Op, rank: int, feature: int) -> Rule:
    exact: Any = linear.LINEAR[op]

    def approximation(x: Any, weight: Any, *_: Any, **__: Any) -> str:
        kept = f"variances of weights are kept as {f'{rank} products' if rank > 1 else 'one product'}"
        matrix = second_moment(weight) if is_random(x) else weight.var if is_random(weight) else None
        if type(matrix) is not Tensor or matrix.is_meta:
            return kept
        return f"{kept}, {misfit(matrix.flatten(1), rank):.0%} off (root mean square)"

    @rule(op, approximation=approximation, mixes=True, factored=True)
    def layer(x: Any, weight: Any, bias: Any = None, *args: Any, backend: Backend = TORCH) -> Any:
        """Σ = Σ_k a_k (b_k·Σx) + r_k (c_k·μx²) + Σ_b; layers of several groups have the exact rule."""
        grouped = len(args) > 3 and args[3] != 1
        if (
            grouped
            or not (is_random(x) or is_random(weight))
            or (feature == 1 and mean_of(x).ndim != mean_of(weight).ndim)
        ):
            return exact(multiplied_out(x), weight, bias, *args)
        return _layer(lambda x, w, b: op(x, w, b, *args), x, weight, bias, rank, feature, backend)

    return layer


@rule(aten.embedding.default, approximation="variances of rows are kept as one product", factored=True)
def embedding(weight: Any, indices: Tensor, *_: Any) -> Any:
    """Rows of a table."""
    left, right = factor(weight.var, 1)
    return Factored(
        F.embedding(indices, weight.mean),
        F.embedding(indices, left.T)[None],
        right.reshape(1, *[1] * indices.ndim, -1),
    )


# --- norms and attention ---------------------------------------------------------------------------------


def normalize(x: Factored, weight: Any, bias: Any, eps: Any, *, centred: bool) -> Any:
    """The norms' rule over the last dimension: with a scale s for each token, s² acts on the coefficients."""
    size = x.mean.shape[-1]
    mean, vectors, rest = x.mean, x.vectors, x.rest
    if centred:
        mean = mean - mean.mean(-1, keepdim=True)
        vectors, rest = centred_var(vectors), None if rest is None else centred_var(rest)
    # Of a centred variance the sum is (1 − 1/D) of what it was, as E[s²] asks for.
    var = (x.coefficients * vectors.sum(-1, keepdim=True)).sum(0)
    var = var if rest is None else var + rest.sum(-1, keepdim=True)
    scale = torch.rsqrt((mean.square().sum(-1, keepdim=True) + var) / size + mean_of(eps))
    standard = Factored(mean * scale, x.coefficients, vectors, rest).map_var(lambda t: t * (scale * scale))
    return _affine(standard, weight, bias)


def centred_var(var: Tensor) -> Tensor:
    return (1 - 2 / var.shape[-1]) * var + var.mean(-1, keepdim=True) / var.shape[-1]


def _norm(op: Op, *, centred: bool) -> Rule:
    exact: Any = normalization.NORMALIZATION[op]
    signature = inspect.signature(exact.function)

    @rule(op, approximation=exact.approximation, mixes=True, scaled=True, factored=True)
    def norm(x: Any, *args: Any, backend: Backend = TORCH, **kwargs: Any) -> Any:
        """γ (x − x̄)/s + β with Σ = (γ/s)² Σx, where it is over the last dimension."""
        bound = signature.bind(x, *args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        dims = [d % x.mean.ndim for d in given["dims"]] if "dims" in given else given["normalized_shape"]
        over_last = dims == [x.mean.ndim - 1] if "dims" in given else len(dims) == 1
        if not isinstance(x, Factored) or not over_last or varies(x.coefficients, -1):
            return exact(multiplied_out(x), *args, **kwargs)
        eps = torch.finfo(x.mean.dtype).eps if given["eps"] is None else given["eps"]
        return backend.normalize(x, given.get("weight"), given.get("bias"), eps, centred=centred)

    return norm


_affine = functools.partial(normalization.scale_and_shift, add=add, multiply=multiply)
batch_norm = rule(aten._native_batch_norm_legit_no_training.default, approximation=None, factored=True)(
    functools.partial(normalization.batch_norm.function, add=add, multiply=multiply)
)

TORCH = Backend(linear.spread, contract, normalize, attention.attention)


@rule(
    aten.scaled_dot_product_attention.default,
    approximation=attention.attention.approximation,
    mixes=True,
    factored=True,
)
def attend(query: Any, key: Any, value: Any, *args: Any, backend: Backend = TORCH, **kwargs: Any) -> Any:
    """Σ = (A ⊙ A) Σ_V acts on the coefficients."""
    query, key = mean_of(query), mean_of(key)
    grouped = kwargs.get("enable_gqa", False)
    if not isinstance(value, Factored) or varies(value.coefficients, -1) or varies(value.vectors, -2) or grouped:
        return backend.attend(query, key, multiplied_out(value), *args, **kwargs)
    columns = value.coefficients[..., 0].movedim(0, -1)  # [..., tokens, k]
    columns = columns.expand(*value.mean.shape[:-2], *columns.shape[-2:])
    count, rest = columns.shape[-1], value.rest
    joint = columns if rest is None else torch.cat([columns, rest.expand_as(value.mean)], -1)
    mean, var = backend.attend(query, key, Moments(value.mean, joint), *args, **kwargs)
    coefficients = var[..., :count].movedim(-1, 0)[..., None]
    return Factored(mean, coefficients, value.vectors, None if rest is None else var[..., count:])


@functools.cache
def layers(rank: int) -> RuleSet:
    """Where variances become products, and what keeps them so."""
    convolutions = (aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)
    return RuleSet(
        add,
        subtract,
        multiply,
        divide,
        _layer_rule(aten.linear.default, rank, -1),
        *(_layer_rule(op, rank, 1) for op in convolutions),
        embedding,
        *(_norm(op, centred=True) for op in (aten.layer_norm.default, functions.standardize)),
        *(_norm(op, centred=False) for op in (aten.rms_norm.default, functions.rms_normalize)),
        batch_norm,
        attend,
        name=f"products, rank {rank}",
    )
