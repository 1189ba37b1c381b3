"""Labels, checked against the logits they belong to."""

from __future__ import annotations

import torch
from torch import Tensor

from varprop.errors import InputError


def class_indices(logits: Tensor, target: Tensor) -> Tensor:
    """The labels, checked: one class index for each example."""
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise InputError(f"labels are {target.dtype}: a softmax needs class indices (integers)")
    if target.shape != logits.shape[:-1]:
        hint = ": drop the last dimension with labels.squeeze(-1)" if target.shape == (*logits.shape[:-1], 1) else ""
        raise InputError(f"labels of shape {list(target.shape)} for logits of shape {list(logits.shape)}{hint}")
    low, high = (int(target.min()), int(target.max())) if target.numel() else (0, 0)
    if low < 0 or high >= logits.shape[-1]:
        raise InputError(f"labels from {low} to {high} for {logits.shape[-1]} classes{_hint(low)}")
    return target.long()


def refuse_unlabelled(target: Tensor) -> None:
    """An example without a label is neither right nor wrong."""
    if target.numel() and (low := int(target.min())) < 0:
        raise InputError(f"labels from {low} on{_hint(low)}")


def _hint(low: int) -> str:
    return ": -100 marks what has no label: leave those examples out" if low == -100 else ""


def class_scores(logits: Tensor, target: Tensor) -> Tensor:
    """The labels, checked: a number in [0, 1] for each answer; for a single logit a column may be left out."""
    if logits.shape[-1] == 1 and target.shape == logits.shape[:-1]:
        target = target.unsqueeze(-1)
    if target.shape != logits.shape:
        raise InputError(
            f"labels of shape {list(target.shape)} for logits of shape {list(logits.shape)}: "
            "a sigmoid needs a number in [0, 1] for every answer"
        )
    target = target.to(logits.dtype)
    if not bool(((target >= 0) & (target <= 1)).all()):
        raise InputError(f"labels from {float(target.min()):g} to {float(target.max()):g}: they must be in [0, 1]")
    return target
