"""Which ops of a captured graph run as kernels of their own, and where the flat graph calls them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
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

Kernel = tuple[str, Any, tuple[Any, ...]]
"""The kind of a node, its target and its arguments."""


@dataclass
class KernelChoice:
    """The modules of the pointwise rules of a network, by name, and the nodes of one graph that call them."""

    modules: nn.ModuleDict
    accelerated: bool
    """Is there Triton? Without it, and in what compilers fuse on a CPU, norms and attention are better written out."""
    names: dict[fx.Node, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)

    def prepare(self, node: fx.Node, rule: Rule) -> None:
        """Trace the rule for ``node``, if it is a pointwise function of one tensor and was not met before."""
        x, *rest = node.args
        if not isinstance(x, fx.Node) or len(node.all_input_nodes) != 1:
            return
        dtype = x.meta["val"].dtype
        if dtype.is_complex:
            return
        key = f"{node.target} {rest} {sorted(node.kwargs.items())} {dtype}"
        kind = op_name(node.target).removeprefix("aten.").partition(".")[0]
        name = f"{kind}_{hashlib.sha256(key.encode()).hexdigest()[:8]}"
        if name in self.refused:
            return
        if name not in self.modules:
            module = trace(rule, dtype, *rest, **node.kwargs)
            if module is None:
                self.refused.add(name)
                return
            self.modules[name] = module
        self.names[node] = name

    def key_of(self, node: fx.Node) -> str | None:
        """The traced rule of a pointwise op, if there is a kernel that takes factored variances as they are."""
        if not self.accelerated or node not in self.names:
            return None
        module: Any = self.modules[self.names[node]]
        return str(module.body.key)

    def kernel(self, node: fx.Node, rule: Rule, args: Any, kwargs: Any, scale: fx.Node | None) -> Kernel | None:
        """What a flat graph calls for this op, given its arguments there; None if its rule is written."""
        if node in self.names and scale is not None:
            return "call_module", f"pointwise.{self.names[node]}", (*args[0], scale)
        if not self.accelerated:
            return None
        if rule is attention:
            found = _attention(node, *args, **kwargs)
            return found and ("call_function", attend, found)
        if rule in EXPECTED and scale is not None:
            found = _norm(node, rule.ops[0], args, kwargs, scale)
            return found and ("call_function", normalize, (*found, EXPECTED[rule], *[None] * 6, True))
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
