"""Ops that move entries about without changing them, and ops whose results carry no variance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from varprop.moments import Moments, is_random, mean_of
from varprop.rules import functions
from varprop.rules.ruleset import Op, RuleSet, rule, rule_for_each

aten = torch.ops.aten

DECIDED = "decided at the mean: the variance ends here"


def mean_args(value: Any) -> Any:
    """The same arguments with every random tensor replaced by its mean."""
    return tree_map(mean_of, value, is_leaf=is_random)


def var_args(value: Any) -> Any:
    """The same arguments with every random tensor replaced by its variance, every constant of floats by zeros."""
    return tree_map(_var, value, is_leaf=lambda leaf: is_random(leaf) or _is_joined(leaf))


def _var(leaf: Any) -> Any:
    if is_random(leaf):
        return leaf.var
    if _is_joined(leaf):
        return [item.var if is_random(item) else torch.zeros_like(item) for item in leaf]
    return torch.zeros_like(leaf) if isinstance(leaf, Tensor) and _keeps(leaf.dtype) else leaf


def _is_joined(value: Any) -> bool:
    """Tensors to be joined, as in cat: integers among them are values, not indices."""
    return isinstance(value, list) and any(map(is_random, value))


def _pair(mean: Any, var: Any) -> Any:
    if isinstance(mean, list | tuple):
        return [Moments(m, v) for m, v in zip(mean, var, strict=True)]
    return Moments(mean, var)


def structural(*ops: Op, run: Callable[..., Any] | None = None, mixes: bool = False) -> RuleSet:
    """Declare ops that do the same to mean and variance. ``run`` stands in for one that relies on strides."""

    @rule_for_each(*ops, approximation=None, mixes=mixes, takes_complex=True)
    def rearrange(op: Op, *args: Any, **kwargs: Any) -> Any:
        """Entries move or add up, mean and variance alike. Exact."""
        function = run or op
        return _pair(function(*mean_args(args), **mean_args(kwargs)), function(*var_args(args), **var_args(kwargs)))

    return rearrange


def _target_dtype(x: Any, *args: Any, dtype: torch.dtype | None = None, **_: Any) -> torch.dtype:
    target = mean_of(args[0]) if args else dtype
    return target.dtype if isinstance(target, Tensor) else target or mean_of(x).dtype


def _keeps(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _rounding(*args: Any, **kwargs: Any) -> str | None:
    return None if _keeps(_target_dtype(*args, **kwargs)) else DECIDED


@rule(aten._to_copy.default, aten.to.dtype, aten.type_as.default, approximation=_rounding, takes_complex=True)
def cast(x: Any, *args: Any, **kwargs: Any) -> Any:
    """A change of dtype. Casting to integers stops the variance."""
    mean = mean_of(x).to(_target_dtype(x, *args, **kwargs))
    return Moments(mean, x.var.to(mean.dtype)) if is_random(x) and _keeps(mean.dtype) else mean


@rule(aten.copy.default, aten.fill.Tensor, approximation=None, takes_complex=True)
def copy(x: Any, source: Any, *_: Any) -> Any:
    """The entries of ``source`` in the shape and dtype of x. Exact."""
    like = mean_of(x)
    mean, *var = (part.to(like.dtype).expand(like.shape) for part in (source if is_random(source) else (source,)))
    return Moments(mean, *var) if var else mean


@rule(aten.dropout.default, approximation=None, takes_complex=True)
def dropout(x: Moments, p: float, train: bool) -> Any:
    """The identity, in evaluation. Exact."""
    return NotImplemented if train and p > 0 else x


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor, approximation=None, takes_complex=True)
def masked_fill(x: Any, mask: Tensor, value: Any) -> Moments:
    """Chosen entries become a value of no variance, or a random one. Exact."""
    if not is_random(x) or is_random(value):
        return where(mask, value, x)
    return Moments(x.mean.masked_fill(mask, value), x.var.masked_fill(mask, 0.0))


@rule(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, approximation=None, takes_complex=True)
def where(condition: Tensor, x: Any, y: Any) -> Moments:
    """Each entry from x or from y. Exact."""
    mean = torch.where(condition, mean_of(x), mean_of(y))
    var = torch.where(condition, x.var if is_random(x) else 0.0, y.var if is_random(y) else 0.0)
    return Moments(mean, var.to(mean.dtype).expand_as(mean))


@rule(aten.nan_to_num.default, approximation=None)
def nan_to_num(x: Moments, *args: Any, **kwargs: Any) -> Moments:
    """What is not finite becomes a value of no variance. Exact."""
    return Moments(aten.nan_to_num.default(x.mean, *args, **kwargs), torch.where(x.mean.isfinite(), x.var, 0.0))


@rule(aten.pad.default, aten.constant_pad_nd.default, approximation=None, takes_complex=True)
def pad(x: Moments, size: list[int], *args: Any, **kwargs: Any) -> Moments:
    """Padding by a value of no variance, or by copies of the border. Exact."""
    mode = args[0] if args and isinstance(args[0], str) else kwargs.get("mode", "constant")
    value = kwargs.get("value", args[-1] if args and not isinstance(args[-1], str) else 0.0)
    mean = aten.pad.default(x.mean, size, mode, value if mode == "constant" else None)
    return Moments(mean, aten.pad.default(x.var, size, mode))


def reshape(x: Tensor, size: list[int]) -> Tensor:
    return x.reshape(size)


MOVES = RuleSet(
    # A captured view relies on the strides of the op before it, which the variance need not share.
    structural(aten.view.default, aten._unsafe_view.default, aten.reshape.default, run=reshape),
    structural(
        aten.alias.default,
        aten.atleast_3d.default,
        aten.cat.default,
        aten.channel_shuffle.default,
        aten.chunk.default,
        aten.clone.default,
        aten.concat.default,
        aten.concatenate.default,
        aten.contiguous.default,
        aten.detach.default,
        aten.diagonal.default,
        aten.dstack.default,
        aten.flatten.using_ints,
        aten.flip.default,
        aten.positive.default,
        aten.hstack.default,
        aten.index_put.default,
        aten.masked_scatter.default,
        aten.max_unpool2d.default,
        aten.max_unpool3d.default,
        aten.permute.default,
        aten.pixel_shuffle.default,
        aten.pixel_unshuffle.default,
        aten.resolve_conj.default,
        aten.roll.default,
        aten.rot90.default,
        aten.scatter.src,
        aten.select.int,
        aten.select_scatter.default,
        aten.slice.Tensor,
        aten.slice_scatter.default,
        aten.split.Tensor,
        aten.split_with_sizes.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.stack.default,
        aten.t.default,
        aten.transpose.int,
        aten.tril.default,
        aten.triu.default,
        aten.unbind.int,
        aten.unsqueeze.default,
        aten.view_as_complex.default,
        aten.vstack.default,
    ),
)
"""Each entry goes to one place at most."""

COPIES = structural(
    aten.broadcast_tensors.default,
    aten.embedding.default,
    aten.expand.default,
    aten.gather.default,
    aten.im2col.default,
    aten.index.Tensor,
    aten.index_select.default,
    aten.meshgrid.indexing,
    aten.repeat.default,
    aten.repeat_interleave.self_int,
    aten.reflection_pad1d.default,
    aten.reflection_pad2d.default,
    aten.reflection_pad3d.default,
    aten.replication_pad1d.default,
    aten.replication_pad2d.default,
    aten.replication_pad3d.default,
    aten.take_along_dim.default,
    aten.tile.default,
    aten.unfold.default,
    aten.upsample_nearest1d.vec,
    aten.upsample_nearest2d.vec,
    aten.upsample_nearest3d.vec,
    aten._upsample_nearest_exact1d.default,
    aten._upsample_nearest_exact2d.default,
    aten._upsample_nearest_exact3d.default,
    aten.view_as_real.default,  # the parts of a complex number may share noise
    functions.spread,
)
"""An entry may go to several places."""

STRUCTURAL = RuleSet(
    *(MOVES, COPIES, cast, copy, dropout, masked_fill, where, nan_to_num, pad),
    name="structural",
)


def at_mean(op: Op, *args: Any, **kwargs: Any) -> Any:
    """f(μ), without variance."""
    return op(*mean_args(args), **mean_args(kwargs))


COMPARISONS = ("eq", "ne", "gt", "ge", "lt", "le")

DECISIONS = RuleSet(
    rule_for_each(
        *(getattr(getattr(aten, name), kind) for name in COMPARISONS for kind in ("Scalar", "Tensor")),
        aten.argmax.default,
        aten.argmin.default,
        aten.argsort.default,
        aten.argsort.stable,
        aten.ceil.default,
        aten.floor.default,
        aten.round.default,
        aten.trunc.default,
        aten.floor_divide.default,
        aten.sgn.default,
        aten.signbit.default,
        aten.logical_and.default,
        aten.logical_not.default,
        aten.logical_or.default,
        aten.logical_xor.default,
        aten.all.default,
        aten.all.dim,
        aten.any.default,
        aten.any.dim,
        approximation=DECIDED,
    )(at_mean),
    # What does not depend on the values, as long as they are finite.
    rule_for_each(
        aten.isfinite.default,
        aten.isnan.default,
        aten.ones_like.default,
        aten.zeros_like.default,
        aten.full_like.default,
        aten.new_ones.default,
        aten.new_zeros.default,
        aten.new_full.default,
        aten.isinf.default,
        aten.fill.Scalar,
        aten.zero.default,
        approximation=None,
    )(at_mean),
    name="decisions",
)
"""Ops at which variance ends."""
