"""What is predicted, seen from the targets."""

from __future__ import annotations

from torch import Tensor

from varprop.errors import InputError
from varprop.prediction.links import Gaussian, Link, Sigmoid, Softmax
from varprop.prediction.targets import labelled


def link_for(logits: Tensor, target: Tensor) -> Link:
    """Softmax for class indices, sigmoid for zeros and ones in the shape of the logits, else a regression."""
    if not target.is_floating_point() and target.shape == logits.shape[:-1] and logits.shape[-1] > 1:
        return Softmax()
    single = logits.shape[-1:] == (1,) and target.shape == logits.shape[:-1]
    binary = bool(((target == 0) | (target == 1) | ~labelled(target)).all())
    if binary and (single or target.shape == logits.shape):
        if not single and target.shape[-1] > 1 and bool((target.sum(-1) == 1).all()):
            raise InputError(
                "each row of the targets holds a single 1: give class indices, targets.argmax(-1), if every example "
                "has one label, and link=vp.links.Sigmoid() if it may have several"
            )
        return Sigmoid()
    if target.is_floating_point():
        return Gaussian()
    raise InputError(
        f"{target.dtype} targets of shape {list(target.shape)} for outputs of shape {list(logits.shape)} are neither "
        "class indices nor zeros and ones: give floats for a regression, or say what they are with link="
    )
