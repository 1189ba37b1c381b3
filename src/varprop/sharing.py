"""Work that several processes share: each does a part of it, and all of them have all of what comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor

from varprop.errors import GroupError

Item = TypeVar("Item")
Found = dict[str, Tensor]


def shared(items: Iterable[Item], work: Callable[[int, Item], Found], group: Any) -> list[Found]:
    """``work(number, item)`` of every item, in order.

    Each process of a ``group`` of ``torch.distributed`` goes through the same items and works on its share of them;
    results come back on the CPU, bit by bit the same as those of one process, for which ``group`` is None.
    """
    if group is None:
        return [work(number, item) for number, item in enumerate(items)]
    rank, world, count = dist.get_rank(group), dist.get_world_size(group), 0
    own: Found = {}
    for number, item in enumerate(items):
        count += 1
        if number % world == rank:
            own |= {f"{number} {name}": x.detach().cpu().contiguous() for name, x in work(number, item).items()}
    found: list[Found] = [{} for _ in range(count)]
    try:
        parts = _gathered(own, group)
    except RuntimeError as error:
        reason = "the processes of the group do not reach each other; one of them may have ended"
        raise GroupError(f"{reason} ({error}): start all of them again") from error
    for part in parts:
        for key, tensor in part.items():
            place, _, name = key.partition(" ")
            found[int(place)][name] = tensor
    return found


def _gathered(own: Found, group: Any) -> list[Found]:
    """What every process has, as bytes of safetensors: nothing is unpickled."""
    place = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    text = torch.frombuffer(bytearray(safetensors.torch.save(own)), dtype=torch.uint8).to(place)
    sizes = [torch.zeros(1, dtype=torch.int64, device=place) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, torch.tensor([len(text)], device=place), group)
    longest = max(map(int, sizes))
    parts = [torch.empty(longest, dtype=torch.uint8, device=place) for _ in sizes]
    dist.all_gather(parts, torch.nn.functional.pad(text, (0, longest - len(text))), group)
    return [
        safetensors.torch.load(bytes(part[: int(size)].cpu().numpy())) for part, size in zip(parts, sizes, strict=True)
    ]
