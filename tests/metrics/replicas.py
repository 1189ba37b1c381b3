"""What two processes do in the tests of distributed metrics. Each returns a dict of tensors."""

import torch
from torchmetrics import MetricCollection

from varprop import metrics


def shard(rank):
    """Uneven: 70 examples on one rank, 31 on the other, with ties across them."""
    generator = torch.Generator().manual_seed(rank)
    size = (70, 31)[rank]
    confidence = torch.randint(0, 12, (size,), generator=generator) / 12
    probs = torch.randn(size, 3, generator=generator).softmax(1)
    correctness = torch.rand(size, generator=generator, dtype=torch.float64)
    return confidence, correctness, probs, torch.randint(3, (size,), generator=generator)


def shared(rank):
    confidence, correctness, probs, target = shard(rank)
    scored = MetricCollection([metrics.AURC(), metrics.CoverageAtRisk(0.5), metrics.ECE(), metrics.ACE(4)])
    brier = metrics.Brier()
    for part in torch.arange(len(target)).chunk(3):
        scored.update(confidence[part], correctness[part])
        brier.update(probs[part], target[part])
    found = scored.compute() | {"Brier": brier.compute()}
    # The states are this rank's own again: going on must not count the other rank twice.
    scored.update(confidence[:5], correctness[:5])
    found["AURC after five more"] = scored.compute()["AURC"]
    return found


def one_rank_idle(rank):
    confidence, correctness, probs, target = shard(0)
    aurc, brier = metrics.AURC(), metrics.Brier()
    if rank == 0:
        aurc.update(confidence, correctness)
        brier.update(probs, target)
    return {"AURC": aurc.compute(), "Brier": brier.compute()}
