"""Two gloo processes: each runs the same functions of its rank, and what they return comes back by rank."""

import os
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

needs_gloo = pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo")


def results(folder, functions):
    """``[{name: result, …} of rank 0, {…} of rank 1]``; results hold tensors and plain values."""
    torch.multiprocessing.spawn(_main, (2, str(folder), functions), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def _main(rank, world, folder, functions):
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    # Long, for machines that are busy with other tests.
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world, timeout=timedelta(minutes=10))
    torch.save({function.__name__: function(rank) for function in functions}, f"{folder}/{rank}.pt")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort a process that ends the usual way
