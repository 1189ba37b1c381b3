"""Labels, checked against the logits they belong to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from varprop.errors import InputError
from varprop.moments import Moments

IGNORED = -100
"""The label of what has none, such as padding or a pixel nobody annotated; as in torch's cross-entropy."""


def labelled(target: Tensor) -> Tensor:
    """Which entries have a label. Where there is no sign, 156 is a label, though it equals −100 there."""
    return (target >= 0) | (target != IGNORED)


def mean_of_each(losses: Tensor, target: Tensor) -> Tensor:
    """The loss of each example: the mean over its positions that have a label, so that each counts as one."""
    if losses.ndim < 2:
        return losses
    seen = labelled(target) if target.shape == losses.shape else torch.ones_like(losses, dtype=torch.bool)
    return losses.flatten(1).sum(1) / seen.flatten(1).sum(1).clamp(min=1)


def of_labelled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A score of logits and class indices, computed where there is a label; elsewhere it is 0."""

    @functools.wraps(function)
    def scored(link: Any, logits: Any, target: Tensor) -> Tensor:
        chosen = labelled(target)
        if bool(chosen.all()) or target.shape != logits.shape[:-1]:  # which the function refuses
            return function(link, logits, target)
        if not bool(chosen.any()):
            return torch.zeros(target.shape, device=target.device)
        some = Moments(*(x[chosen] for x in logits)) if isinstance(logits, Moments) else logits[chosen]
        scores = function(link, some, target[chosen])
        return scores.new_zeros(target.shape).masked_scatter(chosen, scores)

    return scored


def class_indices(logits: Tensor, target: Tensor) -> Tensor:
    """The labels, checked: one class index for each example."""
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise InputError(
            f"labels are {target.dtype}: a softmax needs class indices (integers). Numbers that were measured need "
            "link=vp.links.Gaussian(), several labels of one example link=vp.links.Sigmoid()"
        )
    if target.shape != logits.shape[:-1]:
        raise InputError(
            f"labels of shape {list(target.shape)} for logits of shape {list(logits.shape)}{_shaped(logits, target)}"
        )
    low, high = (int(target.min()), int(target.max())) if target.numel() else (0, 0)
    if low < 0 or high >= logits.shape[-1]:
        hint = ": classes are counted from 0, targets - 1" if low > 0 and high == logits.shape[-1] else ""
        raise InputError(f"labels from {low} to {high} for {logits.shape[-1]} classes{hint}")
    return target.long()


def _shaped(logits: Tensor, target: Tensor) -> str:
    """How to mend the shapes."""
    if target.shape == (*logits.shape[:-1], 1):
        return ": drop the last dimension, targets.squeeze(-1)"
    if logits.ndim > 2 and target.shape == (logits.shape[0], *logits.shape[2:]):
        return ": classes come last here, propagate(..., output=lambda logits: logits.movedim(1, -1))"
    return ""


def refuse_mismatch(outputs: Tensor, target: Tensor) -> None:
    """Targets that fit no link, whatever was meant, with how to mend them."""
    hint = ""
    if outputs.shape[:1] != target.shape[:1]:
        hint = ": their first dimensions must agree"
    elif outputs.ndim > 1 and outputs.shape[-1] > 1:
        if not target.is_floating_point():
            hint = _shaped(outputs, target)
        elif target.shape == outputs.shape[:-1]:
            hint = ": class indices are integers, targets.long(); a regression needs one for each output"
    if hint:
        raise InputError(f"targets of shape {list(target.shape)} for outputs of shape {list(outputs.shape)}{hint}")


def refuse_shape(outputs: Tensor, target: Tensor) -> None:
    """A regression has a number for every output."""
    if target.shape == outputs.shape:
        return
    hint = ": give targets.squeeze(-1)" if target.shape == (*outputs.shape, 1) else ""
    if target.shape == outputs.shape[:-1]:
        single = outputs.shape[-1] == 1
        hint = ": give targets.unsqueeze(-1)" if single else ". Class indices need link=vp.links.Softmax()"
    raise InputError(f"targets of shape {list(target.shape)} for outputs of shape {list(outputs.shape)}{hint}")


def class_scores(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The labels, checked: a number in [0, 1] for each answer; and 1 for those that have a label, 0 for others.

    For a single logit a column may be left out.
    """
    if logits.shape[-1] == 1 and target.shape == logits.shape[:-1]:
        target = target.unsqueeze(-1)
    if target.shape != logits.shape:
        raise InputError(
            f"labels of shape {list(target.shape)} for logits of shape {list(logits.shape)}: "
            "a sigmoid needs a number in [0, 1] for every answer. Class indices need link=vp.links.Softmax()"
        )
    seen = labelled(target).to(logits.dtype)
    target = target.to(logits.dtype).masked_fill(seen == 0, 0)
    if not bool(((target >= 0) & (target <= 1)).all()):
        raise InputError(f"labels from {float(target.min()):g} to {float(target.max()):g}: they must be in [0, 1]")
    return target, seen
