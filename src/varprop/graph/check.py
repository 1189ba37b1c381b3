"""Is the captured graph the model? It is run with the plain weights beside the model itself, on the caller's inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from varprop.errors import CaptureError
from varprop.graph.captured import Captured
from varprop.graph.compiler import Plan, plan_call
from varprop.graph.diagnostics import capture_error
from varprop.graph.export import Lifting, Model, quiet, watched
from varprop.graph.signature import Call

# Of the largest value: rounding in another order, and matrix products in another precision, stay below.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 0.1}
OUTPUT = "its output"


def check_plan(lifting: Lifting, plan: Plan, call: Call) -> Plan:
    """``plan``, or another for these sizes alone, which was seen to compute what the model computes in this call.

    Free sizes let a graph serve calls it was not captured with, while the model's code may do something else there.
    """
    if call.sizes in plan.checked:
        return plan
    if plan.captured.guards and (reason := plan.captured.guards.broken(lifting.tensors, call.inputs)):
        raise CaptureError(f"{type(lifting.model).__name__} cannot be captured in this call: {reason}")
    if difference(lifting, plan.captured, call):
        plan = plan_call(lifting, call, free=False)
        if module := difference(lifting, plan.captured, call):
            shapes = ", ".join(str(list(shape)) for shape in call.sizes)
            raise CaptureError(
                f"the graph of {type(lifting.model).__name__} is not the model: {module} differs for inputs of shape "
                f"{shapes}. Its forward depends on what no graph holds, such as a state that changes from call to call"
            )
    plan.checked.add(call.sizes)
    return plan


def difference(lifting: Lifting, captured: Captured, call: Call) -> str | None:
    """The first module whose output in the graph is not the model's in this call; None if the results agree."""
    if any(x.is_meta for x in (*call.inputs, *(tensor for _, tensor in lifting.tensors.mean))):
        return None  # there are no numbers to compare
    model = Model(lifting, call.structure)
    try:
        with quiet():
            expected = model(*(x.clone() for x in call.given_inputs))
            values = captured.run(lifting.tensors, call.inputs, {captured.output})
            output = values[captured.output]
            if _agree(getattr(torch, captured.ending)(output, -1) if captured.ending else output, expected):
                return None
            values = captured.run(lifting.tensors, call.inputs, set(captured.module_outputs.values()))
            return _first(model, captured, values, call.given_inputs) or OUTPUT
    except Exception as error:  # some inputs pass the capture, on fake tensors, and fail on real ones
        raise capture_error(lifting.model, call, error) from error


def _first(model: Model, captured: Captured, values: dict[fx.Node, Any], inputs: list[Tensor]) -> str | None:
    found: list[str] = []

    def note(kind: str, path: str, x: Tensor) -> None:
        node = captured.module_outputs.get(path) if kind == "out" else None
        if path and not found and node is not None and not _agree(values[node], x):
            found.append(f"module {path!r}")

    with watched(model.model, note):
        model(*(x.clone() for x in inputs))
    return found[0] if found else None


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
