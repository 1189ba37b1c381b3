"""Attention and softmax: the map comes from means only, the values carry the variance."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from varprop.moments import Moments, is_random, mean_of
from varprop.rules.normal import cast, in_float32, promote
from varprop.rules.ruleset import RuleSet, rule, rule_for_each
from varprop.rules.structural import at_mean

aten = torch.ops.aten

MAP = "the attention map is computed from means and taken as fixed"


def _fixed_map(query: Any, key: Any, value: Any, attn_mask: Any = None, *_: Any, **__: Any) -> str | None:
    return MAP if any(map(is_random, (query, key, attn_mask))) else None


@rule(aten.scaled_dot_product_attention.default, approximation=_fixed_map, mixes=True)
def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """y = A V with A = softmax(QKᵀ·scale): μ = A μ_V, Σ = (A ⊙ A) Σ_V.

    A is computed from means, so queries and keys need no variance.
    """
    query, key, mask = mean_of(query), mean_of(key), mean_of(attn_mask)
    if not is_random(value):
        return aten.scaled_dot_product_attention.default(
            query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key = key.repeat_interleave(groups, -3)
        value = Moments(*(part.repeat_interleave(groups, -3) for part in value))
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(wide) * scale) @ key.to(wide).transpose(-2, -1)
    weights = _softmax(scores, _causal(scores) if is_causal else mask)
    squares = weights * weights
    return Moments(*(part.to(half.dtype) @ half for part, half in zip((weights, squares), value, strict=True)))


def _causal(scores: Tensor) -> Tensor:
    return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()


def _softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax that gives zeros, not NaN, for a row in which everything is masked."""
    if mask is None:
        return scores.softmax(-1)
    masked = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return aten._safe_softmax.default(masked, -1)


softmax = rule_for_each(
    *(aten.softmax.int, aten._softmax.default, aten._safe_softmax.default),
    approximation="the variance is dropped, as for every attention map",
    mixes=True,
)(at_mean)


@rule(aten.log_softmax.int, approximation="linearised at the mean", mixes=True)
def log_softmax(x: Moments, dim: int, dtype: torch.dtype | None = None) -> Moments:
    """log softmax(x) with p = softmax(μ): Σ_i = (1 − 2p_i) v_i + Σ_j p_j² v_j."""
    wide = promote(cast(x, dtype))
    mean = wide.mean.log_softmax(dim)
    p, v = mean.exp(), wide.var
    # (1 − p)² v + the rest of the sum keeps every term ≥ 0.
    var = (1 - p) ** 2 * v + ((p * p * v).sum(dim, keepdim=True) - p * p * v).clamp_min(0)
    return cast(Moments(mean, var), dtype or x.mean.dtype)


@rule(aten.logsumexp.default, approximation="linearised at the mean", mixes=True)
@in_float32
def logsumexp(x: Moments, dim: list[int], keepdim: bool = False) -> Moments:
    """log Σ exp x with p = softmax(μ): Σ = Σ_j p_j² v_j."""
    p = (x.mean - x.mean.logsumexp(dim, keepdim=True)).exp()
    return Moments(x.mean.logsumexp(dim, keepdim=keepdim), (p * p * x.var).sum(dim, keepdim=keepdim))


ATTENTION = RuleSet(attention, softmax, log_softmax, logsumexp, name="attention")
