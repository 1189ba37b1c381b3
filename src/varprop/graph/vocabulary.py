"""The ops that a stored graph may name: a closed list of pure functions, so that a file can ask for nothing else."""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable
from typing import Any

import torch

from varprop.rules import CVP, functions
from varprop.rules.ruleset import op_name

Op = Callable[..., Any]

_ATEN = re.compile(r"aten\.(\w+)\.(\w+)")
MORE = {
    *("aten._grouped_mm.default", "aten.arange.default", "aten.arange.start", "aten.empty_like.default"),
    *("aten.expand_as.default", "aten.eye.default", "aten.eye.m", "aten.lift_fresh_copy.default"),
    *("aten.linspace.default", "aten.movedim.int", "aten.narrow.default", "aten.new_ones.default"),
    *("aten.new_zeros.default", "aten.nonzero_static.default", "aten.ones.default", "aten.sym_size.int"),
    *("aten.zeros.default",),
}
"""Of torch's ops, beside those that have a rule, those of its core set and those that act on each entry alone."""
FUNCTIONS: dict[str, Op] = {
    f"varprop.{op.__name__}": op
    for op in (
        functions.argument,
        functions.elementwise,
        functions.grouped_matmul,
        functions.modulus,
        functions.quick_gelu,
        functions.residual_linear,
        functions.rms_normalize,
        functions.spread,
        functions.standardize,
        functions.unit_length,
    )
}
ON_SIZES: dict[str, Op] = {
    **{f"operator.{name}": getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "truediv", "mod")},
    **{f"operator.{name}": getattr(operator, name) for name in ("neg", "pow", "getitem", "and_", "or_")},
    **{f"operator.{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"torch.{name}": getattr(torch, name) for name in ("sym_max", "sym_min", "sym_float", "sym_int", "sym_not")},
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc")},
}
_NAMES = {op: name for name, op in (FUNCTIONS | ON_SIZES).items()}


def name_of(op: Any) -> str:
    """The name of an op of the list; a TypeError for any other."""
    name = str(op) if isinstance(op, torch._ops.OpOverload) else _NAMES.get(op, "")
    if not name or find(name) is not op:
        raise TypeError(f"{op_name(op)} is none of the ops that are stored")
    return name


@functools.cache
def find(name: str) -> Op | None:
    """The op of the list that has this name."""
    known = FUNCTIONS.get(name) or ON_SIZES.get(name)
    if known is not None:
        return known
    found = _ATEN.fullmatch(name)
    packet = getattr(torch.ops.aten, found[1], None) if found else None
    op = getattr(packet, found[2], None) if found and isinstance(packet, torch._ops.OpOverloadPacket) else None
    return op if isinstance(op, torch._ops.OpOverload) and _is_listed(op) else None


def _is_listed(op: torch._ops.OpOverload) -> bool:
    """None writes to what it is given; of those without a rule, none draws."""
    if op._schema.is_mutable:
        return False
    plain = str(op) in MORE or not {torch.Tag.core, torch.Tag.pointwise}.isdisjoint(op.tags)
    return op in CVP or (plain and torch.Tag.nondeterministic_seeded not in op.tags)
