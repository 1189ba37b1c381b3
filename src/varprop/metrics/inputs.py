"""Inputs of metrics: checked, detached, and cast to the widest float of their device."""

from __future__ import annotations

import math
import numbers

import torch
from torch import Tensor

from varprop.errors import DeviceMismatchError, MetricError


def wide(device: torch.device) -> torch.dtype:
    """The dtype to accumulate in: float64, but float32 on MPS, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def scored(confidence: Tensor, correctness: Tensor) -> tuple[Tensor, Tensor]:
    """Confidence [N], finite, in its own dtype; correctness [N] in [0, 1], wide."""
    confidence, correctness = _vector("confidence", confidence), graded(correctness)
    if not confidence.is_floating_point():
        raise MetricError(f"confidence must be floating point, not {confidence.dtype}")
    _one_device(confidence=confidence, correctness=correctness)
    if len(confidence) != len(correctness):
        raise MetricError(f"confidence has {len(confidence)} examples, correctness {len(correctness)}")
    finite = confidence.isfinite()
    if not bool(finite.all()):
        # An infinite confidence would be answered at the threshold inf, which stands for answering nothing.
        raise MetricError(f"confidence must be finite, but {_first('confidence', confidence, ~finite)}")
    return confidence, correctness


def scored_in_unit_interval(confidence: Tensor, correctness: Tensor) -> tuple[Tensor, Tensor]:
    """As ``scored``, for confidences that claim to be probabilities of being correct."""
    confidence, correctness = scored(confidence, correctness)
    _within_unit_interval("confidence", confidence, "calibration compares it with an accuracy")
    return confidence, correctness


def graded(correctness: Tensor) -> Tensor:
    """Correctness [N] in [0, 1], wide; bool, integer or float."""
    correctness = _vector("correctness", correctness)
    if correctness.is_complex():
        raise MetricError("correctness must be real, not complex")
    correctness = correctness.to(wide(correctness.device))
    _within_unit_interval("correctness", correctness, "0 is wrong, 1 is right, values between are soft")
    return correctness


def distribution(name: str, probs: Tensor) -> Tensor:
    """Probabilities [N, C] over C ≥ 2 classes, detached, in their own dtype.

    A row sums to 1 within 1e-3, or within two units of rounding where the dtype is coarser than that.
    """
    probs = independent(name, probs)
    if probs.shape[1] < 2:
        raise MetricError(f"{name} has a single class, which is always right: give two, or use bce")
    total = probs.sum(1, dtype=wide(probs.device))
    off = (total - 1).abs() > (max(1e-3, 2 * torch.finfo(probs.dtype).eps) if probs.is_floating_point() else 0)
    if bool(off.any()):
        row = int(off.nonzero()[0])
        raise MetricError(f"{name}[{row}] sums to {float(total[row]):.6g}, not 1: apply softmax to logits first")
    return probs


def independent(name: str, probs: Tensor) -> Tensor:
    """Probabilities [N, A] of A answers that do not exclude each other, detached, in their own dtype."""
    probs = _tensor(name, probs)
    if probs.ndim != 2:
        raise MetricError(f"{name} must have shape [examples, classes], not {list(probs.shape)}")
    if name == "probs" and not probs.is_floating_point():
        raise MetricError(f"probs must be floating point, not {probs.dtype}")
    _within_unit_interval(name, probs, "probabilities are, logits and log-probabilities are not")
    return probs


def class_target(target: Tensor, probs: Tensor) -> Tensor:
    """Class indices [N], int64, or target probabilities [N, C], wide. The number of dimensions tells which."""
    target = _tensor("target", target)
    _one_device(probs=probs, target=target)
    examples, classes = probs.shape
    if target.shape == probs.shape:
        return distribution("target", target).to(wide(target.device))
    if target.shape != (examples,):
        raise MetricError(
            f"target has shape {list(target.shape)}, probs {list(probs.shape)}: "
            f"give class indices [{examples}] or target probabilities [{examples}, {classes}]"
        )
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise MetricError(
            f"class indices must be integers, not {target.dtype}; soft targets have shape [{examples}, {classes}]"
        )
    bad = (target < 0) | (target >= classes)
    if bool(bad.any()):
        raise MetricError(f"there are {classes} classes, 0 to {classes - 1}, but {_first('target', target, bad)}")
    return target.to(torch.int64)


def multi_label_target(target: Tensor, probs: Tensor) -> Tensor:
    """Multi-label targets [N, A] in [0, 1], wide; bool, integer or float."""
    target = _tensor("target", target)
    _one_device(probs=probs, target=target)
    if target.shape != probs.shape:
        raise MetricError(f"target has shape {list(target.shape)}, probs {list(probs.shape)}: they must be equal")
    return independent("target", target).to(wide(target.device))


def yes_or_no(name: str, value: Tensor) -> Tensor:
    """Zeros and ones [N], wide."""
    value = _vector(name, value).to(wide(value.device))
    wrong = (value != 0) & (value != 1)
    if bool(wrong.any()):
        raise MetricError(f"{name} must be 0 or 1, but {_first(name, value, wrong)}")
    return value


def aligned(**tensors: Tensor) -> tuple[Tensor, ...]:
    """Real numbers of one shape, flattened and wide; infinite or NaN is refused."""
    found = {name: _tensor(name, value) for name, value in tensors.items()}
    _one_device(**found)
    if len({value.shape for value in found.values()}) > 1:
        shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in found.items())
        raise MetricError(f"the shapes differ: {shapes}")
    flat = {name: value.reshape(-1).to(wide(value.device)) for name, value in found.items()}
    for name, value in flat.items():
        if not bool(value.isfinite().all()):
            raise MetricError(f"{name} must be finite, but {_first(name, value, ~value.isfinite())}")
    return tuple(flat.values())


def nonempty(*columns: Tensor) -> tuple[Tensor, ...]:
    """The columns as they are; averaging over no examples is refused."""
    if not len(columns[0]):
        raise MetricError("there are no examples: a metric of nothing is not defined")
    return columns


def mean(scores: Tensor) -> Tensor:
    """Over the examples, of which there must be some."""
    return nonempty(scores)[0].mean()


def number(name: str, value: float) -> float:
    """A real number; it may be infinite."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or math.isnan(value):
        raise MetricError(f"{name} must be a number, not {value!r}")
    return float(value)


def non_negative(name: str, value: float) -> float:
    value = number(name, value)
    if not 0 <= value < math.inf:
        raise MetricError(f"{name} must be finite and at least 0, not {value:g}")
    return value


def open_fraction(name: str, value: float) -> float:
    value = number(name, value)
    if not 0 < value < 1:
        raise MetricError(f"{name} must lie strictly between 0 and 1, not {value:g}")
    return value


def whole(name: str, value: int, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise MetricError(f"{name} must be a whole number, at least {least}, not {value!r}")
    return value


def _tensor(name: str, value: Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        raise MetricError(f"{name} must be a tensor, not {type(value).__name__}")
    return value.detach()


def _vector(name: str, value: Tensor) -> Tensor:
    value = _tensor(name, value)
    if value.ndim != 1:
        raise MetricError(f"{name} must have one entry per example, shape [N], not {list(value.shape)}")
    return value.contiguous()  # torch.bucketize warns of anything else


def _one_device(**tensors: Tensor) -> None:
    places = {name: str(value.device) for name, value in tensors.items()}
    if len(set(places.values())) > 1:
        raise DeviceMismatchError(", ".join(f"{name} is on {place}" for name, place in places.items()))


def _within_unit_interval(name: str, value: Tensor, why: str) -> None:
    """Comparisons with NaN are false, so NaN is refused too."""
    if value.numel() and value.dtype != torch.bool:
        low, high = torch.aminmax(value)
        if not bool((low >= 0) & (high <= 1)):
            bad = ~((value >= 0) & (value <= 1))
            raise MetricError(f"{name} must lie in [0, 1] ({why}), but {_first(name, value, bad)}")


def _first(name: str, value: Tensor, bad: Tensor) -> str:
    where = bad.nonzero()[0].tolist()
    others = int(bad.sum()) - 1
    more = f" (and {others} more)" if others else ""
    return f"{name}[{', '.join(map(str, where))}] is {value[tuple(where)].item():g}{more}"
