"""Sharded parameters (FSDP2): the part of them that lies on this rank.

All ranks of a sharded model see one and the same sampled network, put together from shards that each rank perturbs for
itself, and each gets its part of the gradient averaged over the ranks. So what is computed from one shard's own noise
and gradient is already right, without communication, as long as copies of a shard share their noise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "device_mesh")


def local(tensor: Any) -> Tensor:
    """The memory of this rank; a plain tensor is its own."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def local_gradient(parameter: Any) -> Tensor | None:
    gradient = parameter.grad
    if gradient is None or not is_sharded(gradient):
        return gradient
    if gradient.placements != parameter.placements:
        gradient = gradient.redistribute(placements=parameter.placements)
    return local(gradient)


def like(parameter: Any, shard: Tensor) -> Tensor:
    """A state tensor over ``shard``, sharded as the parameter is, so that torch's checkpoints can reshard it."""
    if not is_sharded(parameter):
        return shard
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        shard,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def coordinate(parameter: Any) -> tuple[int, ...]:
    """Which shard this rank holds: equal for copies of a shard, different for different shards."""
    place = parameter.device_mesh.get_coordinate()
    return tuple(
        int(position) if placement.is_shard() else 0
        for position, placement in zip(place, parameter.placements, strict=True)
    )


def agree(seed: int, parameter: Any) -> int:
    """The seed of the first copy of this shard: ranks may have been seeded apart."""
    mesh = parameter.device_mesh
    told = torch.tensor(seed, device=local(parameter).device)
    for dim, placement in enumerate(parameter.placements):
        if not placement.is_shard() and mesh.size(dim) > 1:
            torch.distributed.broadcast(told, group=mesh.get_group(dim), group_src=0)
            seed = int(told)
    return seed
