"""Out-of-distribution scores, each a function of a prediction: larger means less like the training data."""

from __future__ import annotations

import torch
from torch import Tensor

from varprop.prediction.links import Bernoulli
from varprop.prediction.prediction import Prediction


def max_probability(prediction: Prediction) -> Tensor:
    """1 − the probability of the label."""
    return 1 - prediction.confidence


def entropy(prediction: Prediction) -> Tensor:
    """The entropy of the predicted label, in nats: all uncertainty, whatever it comes from."""
    p = prediction.probs
    if isinstance(prediction.link, Bernoulli):
        return (torch.special.entr(p) + torch.special.entr(1 - p)).sum(-1)
    return torch.special.entr(p).sum(-1)


def total_variance(prediction: Prediction) -> Tensor:
    """The summed variance of the logits: uncertainty about the weights alone, on the scale of the logits."""
    return prediction.logits.var.sum(-1)


def mutual_information(prediction: Prediction) -> Tensor:
    """Between label and weights, in nats: the entropy of the prediction less the expected entropy of one network.

    Computed from the Gaussian of the logits; what rounding leaves below 0 is 0.
    """
    expected = prediction.link.expected_entropy(prediction.logits)
    return (entropy(prediction) - expected).clamp(min=0)
