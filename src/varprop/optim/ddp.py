"""Data-parallel training: each rank draws noise of its own, and ĝ·z is averaged over ranks as ĝ is.

DistributedDataParallel averages gradients before anyone sees them. The average times one rank's noise gives a curvature
of 1/world_size, because the gradients of the other ranks know nothing of that noise. So the product is formed in DDP's
communication hook, where each rank's own gradient still is, and averaged beside it while the backward pass goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from varprop.errors import SamplingError
from varprop.optim.arena import Arena
from varprop.optim.sharded import is_sharded


class _Sent(NamedTuple):
    """One bucket on its way: ĝ·z and ĝ averaged over ranks, and where each parameter lies in them."""

    work: Any
    product: Tensor
    gradient: Tensor
    places: list[tuple[Tensor, int, tuple[int, ...]]]


class Reduction:
    """How the replicas of a model share what their gradients say. Until ``attach`` nobody has said how."""

    def __init__(self) -> None:
        self.rank = 0
        self._attached = False
        self._group: Any = None  # of a model whose replicas are averaged
        self._sent: list[_Sent] | None = None  # None: no draw is under way
        self._noise: dict[Tensor, Tensor] = {}

    def attach(self, model: nn.Module | None, params: Iterable[Tensor]) -> None:
        """Average over the replicas of a model; without one the process trains by itself."""
        if model is None:
            self._attached, self._group = True, None
            self.rank = dist.get_rank() if _world_size() > 1 else 0
            return
        if not isinstance(model, nn.parallel.DistributedDataParallel):
            raise SamplingError(f"attach() takes the DistributedDataParallel model, not {type(model).__name__}")
        held = set(model.parameters())
        if foreign := [str(tuple(p.shape)) for p in params if p not in held]:
            shapes = ", ".join(foreign[:8])
            raise SamplingError(f"{len(foreign)} parameters of the optimizer are not in this model; shapes {shapes}")
        self._attached, self._group = True, model.process_group
        self.rank = dist.get_rank(self._group)
        # A lambda, because torch reads the annotations of a hook and takes none that are strings.
        model.register_comm_hook(self, lambda reduction, bucket: reduction.send(bucket))

    def refuse_unknown_replicas(self, params: Iterable[Tensor]) -> None:
        """Several processes, and nobody has said how gradients travel between them: the curvature would be wrong."""
        world = _world_size()
        if not self._attached and world > 1 and not all(is_sharded(p) for p in params):
            raise SamplingError(
                f"there are {world} processes, and plain DistributedDataParallel would make the curvature {world} "
                "times too small. After wrapping the model call optimizer.attach(model); models sharded with "
                "fully_shard need no attaching; optimizer.attach(None) says that this process trains by itself"
            )

    def start(self, arenas: Sequence[Arena]) -> None:
        """A draw begins, or its gradients so far are void."""
        if self._group is not None:
            self._sent = []
            self._noise = {p: part for a in arenas for p, part in zip(a.params, a.noise.parts, strict=True)}

    def send(self, bucket: Any) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer().div_(dist.get_world_size(self._group))
        pairs = list(zip(bucket.parameters(), bucket.gradients(), strict=True))
        ours = [(p, g) for p, g in pairs if p in self._noise]
        if self._sent is None or not ours:
            return _sum(buffer, self._group).get_future().then(_value)
        product = torch.zeros(buffer.numel(), dtype=self._noise[ours[0][0]].dtype, device=buffer.device)
        places = [(p, g.storage_offset() - buffer.storage_offset(), g.stride()) for p, g in ours]
        for (p, offset, stride), (_, gradient) in zip(places, ours, strict=True):
            torch.mul(gradient, self._noise[p], out=product.as_strided(p.shape, stride, offset))
        kept = torch.empty_like(buffer)
        self._sent.append(_Sent(_sum(product, self._group), product, kept, places))

        def keep(done: Any) -> Tensor:
            kept.copy_(_value(done))
            return _value(done)

        return _sum(buffer, self._group).get_future().then(keep)

    def gather(self, arenas: Sequence[Arena]) -> None:
        """Wait for the averages of the draw that ends and give them to the arenas."""
        if self._group is None:
            return
        found: dict[Tensor, tuple[Tensor, Tensor]] = {}
        sent, self._sent = self._sent or [], None
        for work, product, gradient, places in sent:
            work.wait()
            for p, offset, stride in places:
                if p in found:
                    raise SamplingError(
                        "gradients were averaged over ranks more than once in one draw. When accumulating, run every "
                        "backward pass but the last of a draw under model.no_sync()"
                    )
                found[p] = product.as_strided(p.shape, stride, offset), gradient.as_strided(p.shape, stride, offset)
        for arena in arenas:
            self._hand_over(arena, found)

    def _hand_over(self, arena: Arena, found: dict[Tensor, tuple[Tensor, Tensor]]) -> None:
        products, lefts = arena.spare("product").parts, arena.spare("left").parts
        for p, product, left in zip(arena.params, products, lefts, strict=True):
            if p in found:
                product.copy_(found[p][0])
                left.copy_(found[p][1])
            elif p.grad is not None:
                raise SamplingError(
                    "a gradient was not averaged over ranks: the last backward pass before step() ran under "
                    "model.no_sync(), or not through the model given to attach()"
                )
        arena.averaged = True


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _sum(tensor: Tensor, group: Any) -> Any:
    return dist.all_reduce(tensor, group=group, async_op=True)


def _value(done: Any) -> Tensor:
    value = done.value()
    return value[0] if isinstance(value, list) else value
