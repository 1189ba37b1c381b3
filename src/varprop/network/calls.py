"""Captured calls as JSON, and a fingerprint of what a captured graph computes."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import fx

from varprop.errors import NetworkFileError
from varprop.graph.export import Captured
from varprop.graph.signature import Signature, Structure, random_leaves
from varprop.rules.ruleset import op_name

PLAIN = (type(None), bool, int, float, str)  # what JSON gives back with the type it had


def encode(call: Signature) -> dict[str, Any]:
    """Raises a TypeError if the call has a constant that JSON cannot hold, such as a member of an enumeration."""
    inputs = [
        {"dtype": dtype_name(dtype), "shape": list(sizes)} for dtype, sizes in zip(call.dtypes, call.sizes, strict=True)
    ]
    return {"structure": _encode(call.structure), "inputs": inputs}


def decode(record: Any) -> Signature:
    """The inverse of ``encode``, on anything that came out of a JSON file."""
    try:
        structure = _decode(record["structure"])
        inputs = [(dtype_of(item["dtype"]), tuple(item["shape"])) for item in record["inputs"]]
        arguments = [item[0] for item in structure[1]] if structure[0] == "tuple" else []
        leaves = sum(2 if random else 1 for random in random_leaves(structure))
    except (TypeError, KeyError, ValueError, IndexError, RecursionError, RuntimeError) as error:
        raise NetworkFileError(f"a call in its config.json is not understood ({error})") from error
    sizes = [size for _, shape in inputs for size in shape]
    if arguments != ["tuple", "dict"] or leaves != len(inputs) or not all(type(n) is int and n >= 0 for n in sizes):
        raise NetworkFileError("a call in its config.json contradicts itself")
    return Signature(structure, tuple(dtype for dtype, _ in inputs), tuple(shape for _, shape in inputs))


def fingerprint(captured: Captured) -> str:
    """Equal for graphs that compute the same from the same tensors of the model; devices do not count."""
    names = {node: f"%{index}" for index, node in enumerate(captured.ops())}
    names |= {node: f"%input{index}" for index, node in enumerate(captured.inputs)}
    for tensors in (captured.parameters, captured.buffers, captured.constants):
        names |= {node: f"%{name}" for node, name in tensors.items()}

    def text(value: Any) -> str:
        if isinstance(value, fx.Node):
            return names.get(value, value.name)
        if isinstance(value, list | tuple):
            return f"[{','.join(map(text, value))}]"
        if isinstance(value, dict):
            return f"{{{','.join(f'{key}:{text(item)}' for key, item in value.items())}}}"
        return "device" if isinstance(value, torch.device) else repr(value)

    total = hashlib.sha256()
    for node in (*captured.ops(), captured.graph.output_node()):
        total.update(f"{op_name(node.target)} {text(node.args)} {text(node.kwargs)}\n".encode())
    return total.hexdigest()


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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
