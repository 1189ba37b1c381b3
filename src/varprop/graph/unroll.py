"""Recurrent layers, each one op to torch, are captured as the steps of their cells; packed sequences as padded ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from varprop.errors import CaptureError, TrainingModeError
from varprop.graph.annotations import annotate, guard, pack, unpack

State = tuple[Tensor, ...]
Cell = Callable[[Tensor, State, Sequence[Tensor | None], str], State]


# --- cells ---------------------------------------------------------------------------------------


def _activated(function: Callable[[Tensor], Tensor], x: Tensor, role: str) -> Tensor:
    """Named by its role in the cell: all steps share one calibration scale, and sequences of any length have it."""
    y = function(x)
    annotate(y, "role", role)
    return y


def _lstm(gates: Tensor, state: State, weights: Sequence[Tensor | None], name: str) -> State:
    """c' = σ(f) c + σ(i) tanh(g), h' = P σ(o) tanh(c')."""
    (hidden, cell), (weight, bias, projection) = state, weights
    i, f, g, o = (gates + linear(hidden, weight, bias)).chunk(4, -1)  # type: ignore[arg-type]
    kept = _activated(torch.sigmoid, f, f"{name}forget") * cell
    added = _activated(torch.sigmoid, i, f"{name}input") * _activated(torch.tanh, g, f"{name}candidate")
    updated = kept + added
    shown = _activated(torch.sigmoid, o, f"{name}output") * _activated(torch.tanh, updated, f"{name}cell")
    return shown if projection is None else linear(shown, projection), updated


def _gru(gates: Tensor, state: State, weights: Sequence[Tensor | None], name: str) -> State:
    """n = tanh(x_n + σ(r) h_n), h' = n + σ(z)(h − n)."""
    (hidden,), (weight, bias, _) = state, weights
    of_input, of_hidden = gates.chunk(3, -1), linear(hidden, weight, bias).chunk(3, -1)  # type: ignore[arg-type]
    reset, update = (
        _activated(torch.sigmoid, of_input[k] + of_hidden[k], f"{name}{role}")
        for k, role in enumerate(("reset", "update"))
    )
    candidate = _activated(torch.tanh, of_input[2] + reset * of_hidden[2], f"{name}candidate")
    return (torch.lerp(candidate, hidden, update),)


def _elman(
    function: Callable[[Tensor], Tensor], gates: Tensor, state: State, weights: Sequence[Tensor | None], name: str
) -> State:
    """h' = f(x + W h)."""
    weight, bias, _ = weights
    return (_activated(function, gates + linear(state[0], weight, bias), f"{name}hidden"),)  # type: ignore[arg-type]


# --- layers --------------------------------------------------------------------------------------


class Lengths:
    """Stands for ``batch_sizes`` of a packed sequence, which depend on values: the padded sequences and how long they
    are do not.
    """

    device = torch.device("cpu")

    def __init__(self, lengths: Tensor, steps: int, batch: int) -> None:
        self.lengths, self.steps, self.batch = lengths, steps, batch

    def __getitem__(self, step: int) -> int:
        if step != 0:
            raise CaptureError("forward reads the batch sizes of a packed sequence: pad it with pad_packed_sequence")
        return self.batch

    def size(self, _: int) -> int:
        return Longest(self.steps)

    def alive(self, step: int) -> Tensor:
        return (self.lengths > step)[:, None]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise CaptureError(f"forward calls {function.__name__} on a packed sequence: pad it with pad_packed_sequence")


CROPPED = (
    "pad_packed_sequence crops to the longest sequence, here shorter than the batch: "
    "crop the batch before, or give it total_length"
)


class Longest(int):
    """The length that ``pad_packed_sequence`` pads to if it is not told one: that of the longest sequence."""


def _run(cell: Cell, x: Tensor, state: State, weights: Sequence[Any], name: str, lengths: Lengths | None) -> Any:
    """One layer in one direction over [time, batch, features]: its outputs, and its last state."""
    weight, bias, *recurrent = weights
    gates = linear(x, weight, bias).unbind(0)
    outputs: dict[int, Tensor] = {}
    backward = name.endswith("reverse.")
    for step in reversed(range(len(gates))) if backward else range(len(gates)):
        new = cell(gates[step], state, recurrent, name)
        if lengths is not None:  # a sequence that has ended, or not begun, keeps its state
            alive = lengths.alive(step)
            new = tuple(torch.where(alive, now, before) for now, before in zip(new, state, strict=True))
        outputs[step], state = new[0], new
    return torch.stack([outputs[step] for step in range(len(gates))]), state


def _layers(cell: Cell, x: Tensor, states: State, flat: Sequence[Tensor], *options: Any, lengths: Any = None) -> Any:
    has_biases, layers, dropout, train, bidirectional = options
    if train and dropout > 0 and layers > 1:
        raise TrainingModeError("a recurrent layer with dropout is in training mode: call model.eval() first")
    directions = ("", "_reverse") if bidirectional else ("",)
    count = len(flat) // (layers * len(directions))
    finals: list[State] = []
    for layer in range(layers):
        outputs = []
        for direction in directions:
            index = len(finals)
            own = _sorted(flat[index * count : (index + 1) * count], has_biases)
            name = f"l{layer}{direction}."
            y, final = _run(cell, x, tuple(state[index] for state in states), own, name, lengths)
            outputs.append(y)
            finals.append(final)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
    return x, *(torch.stack(parts) for parts in zip(*finals, strict=True))


def _sorted(weights: Sequence[Tensor], has_biases: bool) -> list[Tensor | None]:
    """For the input and for the state: weight and bias, and the projection of the state."""
    of_input, of_state, *rest = weights
    biases = rest[:2] if has_biases else [None, None]
    projection = rest[2 if has_biases else 0 :]
    return [of_input, biases[0], of_state, biases[1], projection[0] if projection else None]


def _layer(cell: Cell, x: Tensor, second: Any, *rest: Any) -> Any:
    """In place of ``torch.lstm`` and its like, which take padded or packed sequences."""
    if isinstance(second, Lengths):
        states, flat, *options = rest
        padded = unpack(x, second.steps, second.batch)
        y, *finals = _layers(cell, padded, _states(states), flat, *options, lengths=second)
        return pack(y), *finals
    flat, *options, batch_first = rest
    y, *finals = _layers(cell, x.transpose(0, 1) if batch_first else x, _states(second), flat, *options)
    return y.transpose(0, 1) if batch_first else y, *finals


def _states(given: Tensor | Sequence[Tensor]) -> State:
    return (given,) if isinstance(given, Tensor) else tuple(given)


def _step(cell: Cell, x: Tensor, state: Any, of_input: Tensor, of_state: Tensor, *biases: Tensor | None) -> Any:
    """In place of ``torch.lstm_cell`` and its like."""
    first, second = biases or (None, None)
    new = cell(linear(x, of_input, first), _states(state), (of_state, second, None), "")
    return new[0] if isinstance(state, Tensor) else new


def _pack_padded(x: Tensor, lengths: Tensor, batch_first: bool) -> Any:
    padded = x.transpose(0, 1) if batch_first else x
    return pack(padded), Lengths(lengths.to(x.device), int(padded.shape[0]), padded.shape[1])


def _pad_packed(data: Tensor, lengths: Lengths, batch_first: bool, padding: float, total: int) -> Any:
    if isinstance(total, Longest):
        guard(lengths.lengths.max(), float(total), CROPPED)
    steps = torch.arange(lengths.steps, device=data.device)[:, None, None]
    padded = unpack(data, lengths.steps, lengths.batch).where(steps < lengths.lengths[:, None], padding)
    padded = torch.nn.functional.pad(padded, (0, 0, 0, 0, 0, total - lengths.steps), value=padding)
    return padded.transpose(0, 1) if batch_first else padded, lengths.lengths.cpu()


_CELLS: dict[str, Cell] = {
    "lstm": _lstm,
    "gru": _gru,
    "rnn_tanh": partial(_elman, torch.tanh),
    "rnn_relu": partial(_elman, torch.relu),
}
REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    torch._C._VariableFunctions._pack_padded_sequence: _pack_padded,
    torch._C._VariableFunctions._pad_packed_sequence: _pad_packed,
    **{getattr(torch._C._VariableFunctions, name): partial(_layer, cell) for name, cell in _CELLS.items()},
    **{getattr(torch._C._VariableFunctions, f"{name}_cell"): partial(_step, cell) for name, cell in _CELLS.items()},
}


class Unrolled(TorchFunctionMode):
    """While open, recurrent layers run step by step, and packed sequences stay padded."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return REPLACEMENTS.get(function, function)(*args, **(kwargs or {}))
