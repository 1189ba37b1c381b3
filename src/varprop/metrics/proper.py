"""Proper scores of predicted probabilities: Brier, negative log-likelihood, binary cross-entropy. All are means."""

from __future__ import annotations

import torch
from torch import Tensor

from varprop.metrics import inputs


def brier(probs: Tensor, target: Tensor) -> Tensor:
    """Brier score: the mean of Σ_c (p_c − y_c)², between 0 and 2.

    ``probs`` is [N, C] with C ≥ 2; ``target`` holds class indices [N], or probabilities (also one-hot) [N, C].
    """
    return inputs.mean(brier_of_each(probs, target))


def brier_of_each(probs: Tensor, target: Tensor) -> Tensor:
    probs = inputs.distribution("probs", probs)
    target = inputs.class_target(target, probs)
    if target.ndim == 2:
        return (probs - target).square().sum(1)
    residual = probs.to(inputs.wide(probs.device), copy=True)
    # Subtracting 1 in place of expanding |p|² − 2 p_y + 1, which would cancel where the prediction is right.
    residual[torch.arange(len(target), device=target.device), target] -= 1
    return residual.square_().sum(1)


def nll(probs: Tensor, target: Tensor) -> Tensor:
    """Negative log-likelihood: the mean of −Σ_c y_c log p_c, with 0 log 0 = 0.

    ``inf`` if something that happened was given probability 0. That is the score of such a prediction: clamping it
    would make the result depend on where it is clamped. float32 probabilities reach 0 below 1e-45.
    ``probs`` is [N, C] with C ≥ 2; ``target`` holds class indices [N], or probabilities (also one-hot) [N, C].
    """
    return inputs.mean(nll_of_each(probs, target))


def nll_of_each(probs: Tensor, target: Tensor) -> Tensor:
    probs = inputs.distribution("probs", probs)
    target = inputs.class_target(target, probs)
    if target.ndim == 2:
        return -torch.special.xlogy(target, probs).sum(1)
    return -probs.gather(1, target[:, None]).squeeze(1).to(inputs.wide(probs.device)).log()


def bce(probs: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy for multi-label targets: −Σ_a [y_a log p_a + (1 − y_a) log(1 − p_a)], mean over examples.

    Both are [N, A] in [0, 1]; ``target`` may be soft. 0 log 0 = 0, and ``inf`` where the impossible happened, as for
    ``nll``.
    """
    return inputs.mean(bce_of_each(probs, target))


def bce_of_each(probs: Tensor, target: Tensor) -> Tensor:
    probs = inputs.independent("probs", probs)
    target = inputs.answer_target(target, probs)
    probs = probs.to(target.dtype)
    return -(torch.special.xlogy(target, probs) + torch.special.xlog1py(1 - target, -probs)).sum(1)
