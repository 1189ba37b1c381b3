"""Whether confidence means what it says: the gap between confidence and accuracy, in bins."""

from __future__ import annotations

import torch
from torch import Tensor

from varprop.metrics import inputs
from varprop.metrics.risk import group_sizes, rank, spread


def ece(confidence: Tensor, correctness: Tensor, bins: int = 15) -> Tensor:
    """Expected calibration error: Σ_b (n_b/N) |accuracy_b − mean confidence_b| over bins of equal width.

    Bin k is [k/bins, (k+1)/bins); the last one includes 1. An edge is k/bins rounded to the confidence's dtype, so
    that a confidence of k/bins opens bin k in every dtype.
    """
    bins = inputs.whole("bins", bins, least=1)
    confidence, correctness = inputs.nonempty(*inputs.scored_in_unit_interval(confidence, correctness))
    return bin_gaps(confidence, correctness, bins).abs().sum() / len(confidence)


def bin_gaps(confidence: Tensor, correctness: Tensor, bins: int) -> Tensor:
    """Summed confidence minus correctness in each bin of equal width: all that ECE needs of a batch."""
    inner = torch.arange(1, bins, dtype=torch.float64) / bins
    edges = inner.to(confidence.dtype).to(confidence.device)
    where = torch.bucketize(confidence, edges, right=True)
    gaps = torch.zeros(bins, dtype=correctness.dtype, device=correctness.device)
    return gaps.index_add_(0, where, confidence.to(correctness.dtype) - correctness)


def ace(confidence: Tensor, correctness: Tensor, bins: int = 15) -> Tensor:
    """Adaptive calibration error: as ECE, over bins that hold equally many examples, in order of confidence.

    If N is no multiple of ``bins``, the bins of lowest confidence hold one example more; with fewer examples than
    bins each is a bin of its own. Examples of equal confidence share their mean correctness, so a tie that spans
    bins does not depend on the order of the input. This is the error of the confidence that was given, not
    the mean over all classes that some call by this name.
    """
    bins = inputs.whole("bins", bins, least=1)
    confidence, correctness = inputs.nonempty(*inputs.scored_in_unit_interval(confidence, correctness))
    ranking = rank(confidence, correctness)
    claimed = ranking.threshold.to(correctness.dtype).repeat_interleave(group_sizes(ranking))
    gaps = (claimed - spread(ranking)).flip(0).cumsum(0)
    size, larger = divmod(len(confidence), bins)
    b = torch.arange(1, min(bins, len(confidence)) + 1, device=confidence.device)
    ends = b * size + b.clamp(max=larger)
    gaps = gaps[ends - 1]
    return gaps.diff(prepend=gaps.new_zeros(1)).abs().sum() / len(confidence)
