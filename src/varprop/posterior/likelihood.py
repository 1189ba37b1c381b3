"""The Fisher information of a network's outputs, for each kind of prediction.

The gradient of log p(y|f) in the outputs f, the score, has mean 0 under the prediction's own y, and its covariance is
the Fisher information of the outputs. ``roots`` are vectors a_k with Σ a_k a_kᵀ equal to it; ``score`` is that of a
drawn y.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Likelihood(NamedTuple):
    """Of outputs [..., C]: ``roots(outputs)`` is [..., K, C], ``score(outputs, uniform)`` is [..., C]."""

    roots: Callable[[Tensor], Tensor]
    score: Callable[[Tensor, Tensor], Tensor]
    """The draw is made from numbers uniform in (0, 1), of the outputs' shape: the same ones give the same y."""


def _softmax_roots(outputs: Tensor) -> Tensor:
    """a_c = √p_c (e_c − p): the scores of all classes, weighted by how likely they are."""
    p = outputs.softmax(-1)
    return p.sqrt().unsqueeze(-1) * (torch.eye(p.shape[-1]).to(p) - p.unsqueeze(-2))


def _softmax_score(outputs: Tensor, uniform: Tensor) -> Tensor:
    """e_y − p, with y where the cumulated probabilities pass the uniform number."""
    p = outputs.softmax(-1)
    drawn = (p.cumsum(-1) < uniform[..., :1] * p.sum(-1, keepdim=True)).sum(-1).clamp(max=p.shape[-1] - 1)
    return torch.nn.functional.one_hot(drawn, p.shape[-1]).to(p) - p


def _sigmoid_roots(outputs: Tensor) -> Tensor:
    """Labels are independent: √(p_c (1 − p_c)) e_c."""
    p = outputs.sigmoid()
    return (p * (1 - p)).sqrt().diag_embed()


def _sigmoid_score(outputs: Tensor, uniform: Tensor) -> Tensor:
    p = outputs.sigmoid()
    return (uniform < p).to(p) - p


SOFTMAX = Likelihood(_softmax_roots, _softmax_score)
SIGMOID = Likelihood(_sigmoid_roots, _sigmoid_score)


def normal(std: float) -> Likelihood:
    """Outputs observed with noise of this standard deviation: the information is 1/std², whatever the outputs are."""
    return Likelihood(
        lambda outputs: torch.full_like(outputs, 1 / std).diag_embed(),
        lambda outputs, uniform: torch.special.ndtri(uniform).to(outputs) / std,
    )
