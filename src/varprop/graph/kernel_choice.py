"""Which ops of a captured graph run as kernels of their own, and how the flat graph calls them."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from varprop.kernels.flash import arguments_of, attend
from varprop.kernels.norm_op import normalize
from varprop.kernels.pointwise import trace
from varprop.moments import Moments, is_random, mean_of
from varprop.rules import functions, streamlining
from varprop.rules.attention import attention
from varprop.rules.normalization import NORMALIZATION
from varprop.rules.ruleset import Rule, op_name

aten = torch.ops.aten

SIGNATURES: dict[Any, tuple[str, ...]] = {
    aten.layer_norm.default: ("weight", "bias", "eps"),
    aten.rms_norm.default: ("weight", "eps"),
    functions.standardize: ("eps",),
    functions.rms_normalize: ("eps",),
}
"""What norms take after x and what they are over."""
EXPECTED: dict[Rule, bool] = {NORMALIZATION[op]: True for op in SIGNATURES} | {
    streamlining.NORMALIZATION[op]: False for op in SIGNATURES
}
"""The rules of norms: is the statistic its expectation?"""


def pointwise_rule(node: fx.Node, rule: Rule, modules: nn.ModuleDict) -> str | None:
    """The name among ``modules``, to which it is added, of the traced rule of an op that is a pointwise function of one
    tensor; None for any other.
    """
    x, *rest = node.args
    if not isinstance(x, fx.Node) or len(node.all_input_nodes) != 1 or x.meta["val"].is_complex():
        return None
    module = trace(rule, x.meta["val"].dtype, *rest, **node.kwargs)
    if module is None:
        return None
    kind = op_name(node.target).removeprefix("aten.").partition(".")[0]
    name = f"{kind}_{module.key[:8]}"
    if name not in modules:
        modules[name] = module
    return name


def kernel_call(node: fx.Node, rule: Rule, args: Any, kwargs: Any, scale: fx.Node | None) -> tuple[Any, Any] | None:
    """The kernel that a flat graph calls for a norm or for attention, given the op's arguments there, and what it
    takes; None if the rule is to be written out.
    """
    if rule is attention:
        found = _attention(node, *args, **kwargs)
        return found and (attend, found)
    if rule in EXPECTED and scale is not None:
        found = _norm(node, rule.ops[0], args, kwargs, scale)
        return found and (normalize, (*found, EXPECTED[rule], *[None] * 6, True))
    return None


def _attention(node: fx.Node, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...] | None:
    width = mean_of(query).meta["val"].shape[-1]
    if not is_random(value) or node.meta["val"].ndim != 4 or not isinstance(width, int):
        return None
    return arguments_of(width, query, key, value, *args, **kwargs)


def _norm(node: fx.Node, op: Any, args: Any, kwargs: Any, scale: fx.Node) -> tuple[Any, ...] | None:
    """The arguments of a norm over the last dimension with a plain ε."""
    x, over, *rest = args
    given: dict[str, Any] = dict(zip(SIGNATURES[op], rest, strict=False))
    weight, bias, eps = given.get("weight"), given.get("bias"), given.get("eps")
    last = node.meta["val"].ndim - 1
    over = [last] if len(over) == 1 and op in (aten.layer_norm.default, aten.rms_norm.default) else over
    if kwargs or [dim % (last + 1) for dim in over] != [last] or not isinstance(eps, float):
        return None
    parts = [part for each in (weight, bias) for part in (each if isinstance(each, Moments) else (each, None))]
    return *x, scale, *parts, eps, op in (aten.layer_norm.default, functions.standardize)
