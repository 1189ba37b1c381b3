"""Data-parallel training: each rank draws noise of its own, and ĝ·z is averaged over ranks as ĝ is.

DistributedDataParallel averages gradients before anyone sees them. The average times one rank's noise gives a curvature
of 1/world_size, because the gradients of the other ranks know nothing of that noise. So the product is formed in DDP's
communication hook, where each rank's own gradient still is, and averaged beside it while the backward pass goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from varprop.errors import SamplingError
from varprop.optim.arena import Arena
from varprop.optim.sharded import is_sharded


class Reduction:
    """Averages gradients and curvatures over the replicas of a model, once ``attach`` has named it."""

    def __init__(self) -> None:
        self.rank = 0
        self._attached = False
        self._group: Any = None  # of a model whose replicas are averaged
        # Each parameter's ĝ·z and ĝ averaged over ranks, once the backward pass is done; None: no draw is under way.
        self._sent: list[tuple[Tensor, Tensor, Tensor]] | None = None
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
        """Average a bucket of gradients over ranks, and beside it what they are times the noise of each rank."""
        buffer = bucket.buffer().div_(dist.get_world_size(self._group))
        pairs = list(zip(bucket.parameters(), bucket.gradients(), strict=True))
        ours = [(p, g) for p, g in pairs if p in self._noise]
        if self._sent is None or not ours:
            return self._sum(buffer).then(_value)
        size = buffer.numel()
        both = torch.zeros(2, size, dtype=self._noise[ours[0][0]].dtype, device=buffer.device)
        both[0] = buffer
        for p, gradient in ours:
            place = gradient.storage_offset() - buffer.storage_offset()
            average, product = (both.as_strided(p.shape, gradient.stride(), start) for start in (place, size + place))
            torch.mul(gradient, self._noise[p], out=product)
            self._sent.append((p, product, average))
        return self._sum(both).then(lambda done: buffer.copy_(_value(done)[0]))

    def gather(self, arenas: Sequence[Arena]) -> None:
        """Give the averages of the draw that ends to the arenas; the backward pass has waited for them."""
        if self._group is None:
            return
        sent, self._sent = self._sent or [], None
        found = {p: (product, average) for p, product, average in sent}
        if len(found) < len(sent):
            raise SamplingError(
                "gradients were averaged over ranks more than once in one draw. When accumulating, run every backward "
                "pass but the last of a draw under model.no_sync()"
            )
        if any(p.grad is not None and p not in found for arena in arenas for p in arena.params):
            raise SamplingError(
                "a gradient was not averaged over ranks: the last backward pass before step() ran under "
                "model.no_sync(), or not through the model given to attach()"
            )
        for arena in arenas:
            for index, p in enumerate(arena.params):
                if p in found:
                    arena.set_product(index, *found[p])

    def _sum(self, tensor: Tensor) -> Any:
        return dist.all_reduce(tensor, group=self._group, async_op=True).get_future()


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _value(done: Any) -> Tensor:
    value = done.value()
    return value[0] if isinstance(value, list) else value
