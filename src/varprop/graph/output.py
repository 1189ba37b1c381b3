"""A plain call of a model, and which tensor of its return value is propagated to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from varprop.errors import OutputError, VarpropError
from varprop.graph.diagnostics import own_failure

Output = str | int | Callable[[Any], Tensor] | None


def run(model: nn.Module, weights: dict[str, Tensor], args: Any, kwargs: Any, output: Output) -> Tensor:
    """The logits of the model with these weights in the place of its own, which stay as they are whatever happens.

    Inputs on which the model itself fails are an ``InputError``.
    """
    try:
        result = torch.func.functional_call(model, weights, args, kwargs) if weights else model(*args, **kwargs)
    except Exception as error:
        leaves, structure = tree_flatten((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, Tensor)]

        def apply(function: Any, inputs: list[Tensor]) -> Any:
            rest = iter(inputs)
            given, named = tree_unflatten([next(rest) if isinstance(x, Tensor) else x for x in leaves], structure)
            return function(*given, **named)

        own = None if isinstance(error, VarpropError | torch.OutOfMemoryError) else own_failure(model, tensors, apply)
        if own is None:
            raise
        raise own from error
    return select_output(result, output)


def select_output(result: Any, output: Output) -> Tensor:
    """The tensor named by ``output``; by default the result itself, its ``logits`` or its only tensor."""
    if callable(output):
        chosen = output(result)
    elif output is not None:
        chosen = _named(result, output)
    elif isinstance(result, Tensor):
        chosen = result
    else:
        chosen = _default(result)
    if not isinstance(chosen, Tensor) or not chosen.is_floating_point():
        kind = chosen.dtype if isinstance(chosen, Tensor) else type(chosen).__name__
        raise OutputError(f"the chosen output is {kind}, not a tensor of floats")
    return chosen


def _fields(result: Any) -> dict[Any, Any]:
    if isinstance(result, Mapping):
        return {key: value for key, value in result.items() if isinstance(value, Tensor)}
    if isinstance(result, list | tuple):
        names = getattr(result, "_fields", range(len(result)))
        return {key: value for key, value in zip(names, result, strict=True) if isinstance(value, Tensor)}
    return {key: value for key, value in getattr(result, "__dict__", {}).items() if isinstance(value, Tensor)}


def _named(result: Any, output: str | int) -> Tensor:
    fields = _fields(result)
    if isinstance(output, int) and isinstance(result, list | tuple) and -len(result) <= output < len(result):
        return result[output]
    if output not in fields:
        raise OutputError(f"the model returns no tensor {output!r}, only {_listing(fields)}")
    return fields[output]


def _default(result: Any) -> Tensor:
    if result is None:
        raise OutputError("the model returns None: does its forward lack a return?")
    fields = _fields(result)
    if "logits" in fields:
        return fields["logits"]
    if len(fields) == 1:
        return next(iter(fields.values()))
    first = next(iter(fields), "last_hidden_state")
    raise OutputError(f"the model returns {_listing(fields)} and no logits: name one, e.g. output={first!r}")


def _listing(fields: dict[Any, Any]) -> str:
    return ", ".join(repr(key) for key in fields) or "no tensors"
