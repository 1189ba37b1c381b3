"""How right an answer is: accuracy, also where annotators disagree; F₁ of decisions for or against a label."""

from __future__ import annotations

import torch
from torch import Tensor

from varprop.errors import MetricError
from varprop.metrics import inputs
from varprop.metrics.risk import rank


def accuracy(correctness: Tensor) -> Tensor:
    """Mean correctness, soft or not."""
    return inputs.mean(inputs.graded(correctness))


def f1(decision: Tensor, target: Tensor) -> Tensor:
    """F₁ = 2 TP / (yeses + positives) of decisions [N] for or against a label; 1 if there are neither."""
    decision, target = inputs.nonempty(inputs.yes_or_no("decision", decision), inputs.yes_or_no("target", target))
    if len(decision) != len(target):
        raise MetricError(f"there are {len(decision)} decisions and {len(target)} targets")
    both = decision.sum() + target.sum()
    return 2 * (decision * target).sum() / both if bool(both) else both + 1


def best_f1_threshold(probs: Tensor, target: Tensor) -> float:
    """The lowest probability [N] to be decided for, so that F₁ is largest on these examples; ½ without a positive.

    Ties go to fewer yeses; equal probabilities are decided alike.
    """
    probs, _ = inputs.scored_in_unit_interval(probs, target)
    target = inputs.yes_or_no("target", target)
    if not bool(target.any()):
        return 0.5
    ranking = rank(probs, target)
    return float(ranking.threshold[(2 * ranking.total / (ranking.answered + target.sum())).argmax()])


def vqa_accuracy(matches: Tensor, annotators: int = 10) -> Tensor:
    """Soft accuracy of an answer that ``matches`` of the ``annotators`` gave: the VQA score.

    The mean, over leaving out one annotator at a time, of min(1, matches among the others / 3):
    [m min(3, m − 1) + (A − m) min(3, m)] / 3A. With ten annotators 0, 0.3, 0.6, 0.9, 1, 1, …
    ``matches`` holds whole numbers in a tensor of any shape.
    """
    annotators = inputs.whole("annotators", annotators, least=2)
    if not isinstance(matches, Tensor) or matches.is_floating_point() or matches.is_complex():
        raise MetricError("matches must be a tensor of whole numbers: how many annotators gave the answer")
    matches = matches.to(torch.int64)
    if bool(((matches < 0) | (matches > annotators)).any()):
        raise MetricError(f"matches must lie between 0 and the {annotators} annotators")
    thirds = matches * (matches - 1).clamp(0, 3) + (annotators - matches) * matches.clamp(max=3)
    return thirds.to(inputs.wide(matches.device)) / (3 * annotators)
