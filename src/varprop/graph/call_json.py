"""Calls as JSON: structure, dtypes and shapes, without numbers."""

from __future__ import annotations

import collections
from typing import Any

import torch
from torch import Tensor

from varprop.graph.signature import Call, Named, Structure, dtype_name, random_inputs

MAX_BYTES = 1 << 32
"""Bytes of the inputs of a call that is written down: larger ones are not made up on loading."""
PLAIN = (type(None), bool, int, float, str)  # what JSON gives back with the type it had


def encode(call: Call) -> dict[str, Any]:
    """Raises a TypeError if the call is too large to be captured on loading, or has a constant that JSON cannot hold,
    such as a member of an enumeration.
    """
    if too_large := _too_large(call.leaves):
        raise TypeError(too_large)
    inputs = [{"dtype": dtype_name(leaf.dtype), "shape": list(leaf.shape)} for leaf in call.leaves]
    return {"structure": _encode(call.structure), "inputs": inputs}


def decode(record: Any) -> Call:
    """The outline of the call that ``encode`` was given. Raises a ValueError for anything else."""
    try:
        structure = _decode(record["structure"])
        leaves = [torch.empty(item["shape"], dtype=dtype_of(item["dtype"]), device="meta") for item in record["inputs"]]
        arguments = [item[0] for item in structure[1]] if structure[0] == "tuple" else []
        count = sum(2 if random else 1 for random in random_inputs(structure))
    except (TypeError, KeyError, ValueError, IndexError, RecursionError, RuntimeError) as error:
        raise ValueError(f"it is not understood ({error})") from error
    if arguments != ["tuple", "dict"] or count != len(leaves):
        raise ValueError("it contradicts itself")
    if too_large := _too_large(leaves):
        raise ValueError(too_large)
    return Call(structure, leaves)


def _too_large(leaves: list[Tensor]) -> str:
    size = sum(leaf.nbytes for leaf in leaves)
    if size <= MAX_BYTES:
        return ""
    return f"inputs of {size / 1e9:.0f} GB are more than the {MAX_BYTES / 1e9:.0f} GB allowed"


def dtype_of(name: Any) -> torch.dtype:
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no dtype of torch")
    return found


def _encode(structure: Structure) -> Any:
    kind = structure[0]
    if kind in ("tensor", "moments"):
        return kind
    if kind in ("tuple", "list"):
        return {kind: [_encode(item) for item in structure[1]]}
    if kind == "named":
        return {kind: [structure[1].name, list(structure[1].fields), [_encode(item) for item in structure[2]]]}
    if kind == "dict":
        return {kind: [[_plain(key), _encode(item)] for key, item in structure[1]]}
    value = structure[2]
    if type(value) is torch.dtype:
        return {"dtype": dtype_name(value)}
    return {"device": str(value)} if type(value) is torch.device else {"constant": _plain(value)}


def _decode(value: Any) -> Structure:
    if value in ("tensor", "moments"):
        return (value,)
    kind: str
    content: Any
    kind, content = next(iter(value.items())) if isinstance(value, dict) and len(value) == 1 else ("", None)
    if kind in ("tuple", "list"):
        return (kind, tuple(map(_decode, content)))
    if kind == "named":
        name, fields, items = content
        made: Any = collections.namedtuple(name, [*fields])  # type: ignore[misc]  # it refuses what is no name
        return (kind, Named.of(made), tuple(map(_decode, made._make(items))))
    if kind == "dict":
        return (kind, tuple((_plain(key), _decode(item)) for key, item in content))
    if kind == "dtype":
        return ("constant", torch.dtype, dtype_of(content))
    if kind == "device":
        return ("constant", torch.device, torch.device(content))
    if kind == "constant":
        return ("constant", type(content), _plain(content))
    raise ValueError(f"{value!r} is no part of a call")


def _plain(value: Any) -> Any:
    if type(value) not in PLAIN:
        raise TypeError(f"{value!r} is a {type(value).__name__}, which JSON does not know")
    return value
