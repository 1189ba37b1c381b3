"""Is the captured graph the model? It is run with the plain weights beside the model itself, on the caller's inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from varprop.graph.captured import Captured
from varprop.graph.export import Model, quiet, watched
from varprop.graph.signature import Call

if TYPE_CHECKING:
    from varprop.graph.compiler import Lifting

# Of the largest value: rounding in another order, and matrix products in another precision, stay below.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 0.1}
OUTPUT = "its output"


def difference(lifting: Lifting, captured: Captured, call: Call) -> str | None:
    """The first module whose output in the graph is not the model's in this call; None if the results agree."""
    if any(x.is_meta for x in (*call.inputs, *(tensor for _, tensor in lifting.tensors.mean))):
        return None  # there are no numbers to compare
    inputs = call.inputs
    with quiet():
        model = Model(lifting.model, lifting.tensors, call.structure, lifting.output)
        expected = model(*(x.clone() for x in call.given_inputs))
        values = captured.run(lifting.tensors, inputs, {captured.output})
        if _agree(_ended(values[captured.output], captured.ending), expected):
            return None
        values = captured.run(lifting.tensors, inputs, set(captured.module_outputs.values()))
        return _first(model, captured, values, call.given_inputs) or OUTPUT


def _first(model: Model, captured: Captured, values: dict[fx.Node, Any], inputs: list[Tensor]) -> str | None:
    found: list[str] = []

    def note(kind: str, path: str, x: Tensor) -> None:
        node = captured.module_outputs.get(path) if kind == "out" else None
        if path and not found and node is not None and not _agree(values[node], x):
            found.append(f"module {path!r}")

    with watched(model.model, note):
        model(*(x.clone() for x in inputs))
    return found[0] if found else None


def _ended(logits: Any, ending: str) -> Any:
    return getattr(torch, ending)(logits, -1) if ending else logits


def _agree(value: Any, expected: Tensor) -> bool:
    if not isinstance(value, Tensor) or value.shape != expected.shape:
        return False
    if not expected.is_floating_point():
        return bool(torch.equal(value, expected))
    finite = expected.isfinite()
    largest = float(expected[finite].abs().max()) if bool(finite.any()) else 0.0
    same = value.isfinite() == finite
    near = (value - expected).abs() <= TOLERANCE.get(expected.dtype, 0.1) * largest
    return bool((same & (near | ~finite)).all())
