"""Draws: which noise the weights carry, and what the gradients taken under it say.

A step uses one draw or several. Between draws and steps the weights are the means.

    MEANS ─ enter a block ─▶ BLOCK ─ leave it ─▶ PENDING ─ step ─▶ MEANS      with optimizer.sampled_params(train=True):
    MEANS ─ train() ─▶ STANDING ─ step ─▶ MEANS                               loops that belong to a trainer
                       STANDING ─ eval() ─▶ SUSPENDED ─ train() ─▶ STANDING   evaluation amid a step
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from varprop.errors import SamplingError
from varprop.optim.arena import Arena, Flat, State
from varprop.optim.ddp import Reduction
from varprop.optim.sharded import agree, coordinate, is_sharded, local
from varprop.optim.streams import Noise

_EVALUATION = 0x5EED  # a lane of its own: looking at samples changes nothing in training
_SPENT = "_varprop_spent"


class Phase(Enum):
    """Where the weights are, and what step() would use."""

    MEANS = "the weights are the means"
    BLOCK = "inside sampled_params()"
    PENDING = "after sampled_params(train=True), before step()"
    STANDING = "between train() and step()"
    SUSPENDED = "between eval() and train(), amid a step"


class Draws:
    """The noise of one optimizer. One object holds everything that changes, because trainers wrap optimizers."""

    def __init__(self) -> None:
        self.phase = Phase.MEANS
        self.arenas: list[Arena] = []
        self._layout: list[tuple[Any, ...]] = []  # what the arenas were made for
        self._away: list[Arena] = []  # those whose weights are a sample now
        self.count = 0  # draws whose gradients step() will use
        self.reduction = Reduction()
        self._noise = Noise()
        self._looks = 0

    @property
    def perturbed(self) -> bool:
        return self.phase in (Phase.BLOCK, Phase.STANDING)

    @torch.inference_mode(False)  # or tensors made inside a user's inference_mode could never be trained
    @torch.no_grad()
    def arrange(self, groups: Sequence[dict[str, Any]], state: State) -> None:
        """Bring the arenas in line with the groups: parameters come, go, freeze and move."""
        if self.phase in (Phase.PENDING, Phase.SUSPENDED):
            return  # the draw under way keeps its parameters until step()
        rank = self.reduction.rank
        layout: list[tuple[Any, ...]] = [(rank, [id(group) for group in groups])]
        layout += [(id(p), p.requires_grad, p.dtype, p.device) for group in groups for p in group["params"]]
        if layout != self._layout:
            self._layout = layout
            self.arenas = [
                Arena(*part) for index, group in enumerate(groups) for part in _partition(index, group, rank)
            ]
            for arena in self.arenas:
                if is_sharded(arena.params[0]):
                    arena.group["seed"] = agree(arena.group["seed"], arena.params[0])
        for arena in self.arenas:
            arena.adopt(state)

    @contextmanager
    def block(self, train: bool) -> Iterator[None]:
        """Sampled weights for a while; the means again afterwards, whatever happens."""
        after, gradients = self.phase, [(p, p.grad) for arena in self.arenas for p in arena.params]
        self.phase = Phase.BLOCK
        try:
            if train:
                self._begin()
            else:
                self._look()
            yield
            if train:
                self._finish()
                after = Phase.PENDING
        except BaseException:
            if train:
                after = self._take_back(gradients)
            raise
        finally:
            self._restore()
            self.phase = after

    @torch.no_grad()
    def _look(self) -> None:
        """Sampled weights for evaluation, with noise that nothing is learnt from."""
        self._looks += 1
        for arena in self.arenas:
            noise = arena.new()
            self._perturb(arena, noise, self._draw(arena, (*arena.lane, _EVALUATION), self._looks))

    @torch.no_grad()
    def _begin(self) -> None:
        """A draw that is learnt from."""
        if self.count:
            self._set_aside()
        for arena in self.arenas:
            arena.averaged = False
            for p in arena.params:
                p.grad = None
        self._sample()

    def _sample(self) -> None:
        """New noise, and weights that carry it."""
        for arena in self.arenas:
            self._perturb(arena, arena.noise, self._draw(arena, arena.lane, arena.group["draws"]))
        for group in {id(arena.group): arena.group for arena in self.arenas}.values():
            group["draws"] += 1
        self.reduction.start(self.arenas)

    def _draw(self, arena: Arena, lane: tuple[int, ...], draw: int) -> Callable[[Tensor], None]:
        seeds = arena.group["seed"]
        if isinstance(seeds, int):
            return self._noise.stream(arena.device, seeds, lane, draw)
        lane = (0, *lane[1:])  # the rows' seeds tell them apart, whatever group they are in
        fills = [self._noise.stream(arena.device, seed, lane, draw) for seed in seeds]
        size = arena.params[0].numel() // len(seeds)

        def fill(vector: Tensor) -> None:
            for row, each in zip(vector[: size * len(fills)].split(size), fills, strict=True):
                each(row)

        return fill

    def _perturb(self, arena: Arena, noise: Flat, draw: Callable[[Tensor], None] | None = None) -> None:
        self._away.append(arena)
        arena.perturb(noise, draw)

    @torch.no_grad()
    def _restore(self) -> None:
        """The means of whatever has been perturbed, and of nothing else: the other means may be out of date."""
        for arena in self._away:
            arena.restore()
        self._away.clear()

    @torch.no_grad()
    def _set_aside(self) -> None:
        """Keep what the draws so far gave, before the next one overwrites noise and gradients."""
        finite = True
        for arena in self.arenas:
            product, total = arena.spare("total product"), arena.spare("total gradient")
            product.whole.zero_()
            total.whole.zero_()
            gradients = arena.gradients()
            arena.write_product(product, gradients)
            for part, gradient in zip(total.parts, gradients, strict=True):
                if gradient is not None:
                    part.copy_(gradient)
            arena.reached = [gradient is not None for gradient in gradients]
            finite = finite and bool(total.whole.isfinite().all())
            arena.averaged = False
        if not finite:  # a loss scaler saw it and skipped the step: that draw is over
            self.count = 0

    @torch.no_grad()
    def _finish(self) -> None:
        """Average the draw that ends into those before it, and leave the average gradient in .grad."""
        self.reduction.gather(self.arenas)
        self.count += 1
        if self.count == 1:
            return
        for arena in self.arenas:
            gradients = arena.gradients()
            arena.write_product(arena.noise, gradients)
            products, totals = arena.spare("total product").parts, arena.spare("total gradient").parts
            for product, total, latest, g in zip(products, totals, arena.noise.parts, gradients, strict=True):
                weight = 1 / self.count
                _ = product.mul_(1 - weight) if g is None else product.lerp_(latest, weight)
                _ = total.mul_(1 - weight) if g is None else total.lerp_(g, weight)
            for p, total, reached in zip(arena.params, totals, arena.reached, strict=True):
                if p.grad is None and reached:
                    p.grad = torch.zeros_like(p)
                if p.grad is not None:
                    local(p.grad).copy_(total)
            arena.leave_averages()

    @torch.no_grad()
    def _take_back(self, gradients: Sequence[tuple[Tensor, Tensor | None]]) -> Phase:
        """Go back to the draws before the one that failed."""
        for p, gradient in gradients:
            p.grad = gradient
        if not self.count:
            return Phase.MEANS
        for arena in self.arenas:
            arena.leave_averages()
        return Phase.PENDING

    @torch.no_grad()
    def stand(self) -> None:
        """Sampled weights until step(): a new draw, or the one eval() suspended."""
        if self.phase is Phase.MEANS:
            self.refuse_foreign_gradients()
            for arena in self.arenas:
                arena.averaged = False
            try:
                self._sample()
            except BaseException:
                self._restore()
                raise
            self.phase = Phase.STANDING
            return
        if all(p.grad is None for arena in self.arenas for p in arena.params):
            self.reduction.start(self.arenas)  # the gradients were thrown away: a skipped step
        if self.phase is Phase.SUSPENDED:
            self.phase = Phase.STANDING
            for arena in self.arenas:
                self._perturb(arena, arena.noise)

    def forget(self) -> None:
        """Drop any draw that waits for step."""
        self.phase, self.count = Phase.MEANS, 0

    def suspend(self) -> None:
        self._restore()
        self.phase = Phase.SUSPENDED

    def forget_gradients(self) -> None:
        """After zero_grad(): draws that wait for step() are void, the noise the weights carry is not."""
        if self.phase is Phase.PENDING:
            self.forget()
        else:
            self.reduction.start(self.arenas)

    @torch.no_grad()
    def consume(self) -> None:
        """Update means and curvatures with the draws at hand."""
        if self.phase in (Phase.STANDING, Phase.SUSPENDED):
            self.reduction.gather(self.arenas)
        if self.phase is not Phase.STANDING:
            for arena in self.arenas:
                arena.heed_changes()
        for arena in self.arenas:
            arena.update()
            for p in arena.params:
                if p.grad is not None:
                    setattr(p.grad, _SPENT, p.grad._version)
        self._away.clear()  # the update has put the means in place
        self.forget()

    def refuse_foreign_gradients(self) -> None:
        """Gradients that no draw has seen: a trainer accumulated them at the means."""
        for arena in self.arenas:
            for p in arena.params:
                if p.grad is None or getattr(p.grad, _SPENT, None) == p.grad._version:
                    continue
                if bool(local(p.grad).any()):
                    raise SamplingError(
                        "there are gradients that were taken at the means: call optimizer.train() before the first "
                        "forward pass of every step, or zero_grad() if they were for something else"
                    )


def _partition(
    index: int, group: dict[str, Any], rank: int
) -> Iterator[tuple[dict[str, Any], list[Tensor], tuple[int, ...]]]:
    """Trainable parameters of a group that can share an arena, each with the lane of its noise."""
    found: dict[Any, list[Tensor]] = {}
    for p in group["params"]:
        if p.requires_grad:
            place = coordinate(p) if is_sharded(p) else (rank,)
            found.setdefault((p.device, p.dtype, is_sharded(p), place), []).append(p)
    for number, ((_, _, _, place), params) in enumerate(found.items()):
        yield group, params, (index, number, *place)
