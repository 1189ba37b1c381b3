"""What two processes do in the tests of distributed metrics. Each returns a dict of tensors, saved by rank."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
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


def main(rank, world, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world, timeout=timedelta(seconds=120)
    )
    found = {"shared": shared(rank), "one rank idle": one_rank_idle(rank)}
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort a process that ends the usual way
