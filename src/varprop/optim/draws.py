"""Draws: which noise the weights carry, and what is learnt from the gradients taken under it.

A step uses one draw or several. Between draws and steps the weights are the means.

    MEANS ─ enter a block ─▶ BLOCK ─ leave it ─▶ PENDING ─ step ─▶ MEANS      with optimizer.sampled_params(train=True):
    MEANS ─ train() ─▶ STANDING ─ step ─▶ MEANS                               loops that belong to a trainer

Amid a step, while the draw stands, eval() and train() put the means in place and the same sample back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from varprop.errors import SamplingError
from varprop.optim.arena import Arena, Flat, State
from varprop.optim.ddp import Reduction
from varprop.optim.sharded import agree, coordinate, is_sharded, local
from varprop.optim.streams import fill_normal

_EVALUATION = 0x5EED  # a lane of its own: looking at samples changes nothing in training
_SPENT = "_varprop_spent"


class Phase(Enum):
    """What step() would use."""

    MEANS = "the weights are the means"
    BLOCK = "inside sampled_params()"
    PENDING = "after sampled_params(train=True), before step()"
    STANDING = "between train() and step()"


class Draws:
    """The noise of one optimizer. One object holds everything that changes, because trainers wrap optimizers."""

    def __init__(self) -> None:
        self.phase = Phase.MEANS
        self.arenas: list[Arena] = []
        self._layout: list[tuple[Any, ...]] = []  # what the arenas were made for
        self._sampled: list[Arena] = []  # those whose weights are a sample now
        self.count = 0  # draws whose gradients step() will use
        self.reduction = Reduction()
        self._looks = 0

    @property
    def perturbed(self) -> bool:
        """Whether the weights are a sample now instead of the means."""
        return self.phase is Phase.BLOCK or bool(self._sampled)

    @torch.inference_mode(False)  # or tensors made inside a user's inference_mode could never be trained
    @torch.no_grad()
    def arrange(self, groups: Sequence[dict[str, Any]], state: State) -> None:
        """Bring the arenas in line with the groups: parameters come, go, freeze and move."""
        if self.phase is not Phase.MEANS:
            return  # the draw under way keeps its parameters until step()
        rank = self.reduction.rank
        layout: list[tuple[Any, ...]] = [(rank, [id(group) for group in groups])]
        layout += [(id(p), p.requires_grad, p.dtype, p.device) for group in groups for p in group["params"]]
        if layout != self._layout:
            self._layout = layout
            self.arenas = [arena for index, group in enumerate(groups) for arena in _arenas(index, group, rank)]
        for arena in self.arenas:
            arena.adopt(state)

    @contextmanager
    def block(self, train: bool) -> Iterator[None]:
        """Sampled weights for a while; the means again afterwards, whatever happens."""
        after, earlier = self.phase, {p: p.grad for arena in self.arenas for p in arena.params}
        if train and self.count:  # replicas may reuse the memory for the gradients of the next draw
            earlier = {p: None if gradient is None else gradient.clone() for p, gradient in earlier.items()}
        self.phase = Phase.BLOCK
        try:
            if train:
                self._begin()
            else:
                self._look()
            yield
            if train:
                self._finish(earlier)
                after = Phase.PENDING
        except BaseException:
            if train:
                after = self._roll_back(earlier)
            raise
        finally:
            self.restore()
            self.phase = after

    @torch.no_grad()
    def _look(self) -> None:
        """Sampled weights for evaluation, with noise that nothing is learnt from."""
        self._looks += 1
        for arena in self.arenas:
            noise = arena.new()
            _fill(noise, arena, (*arena.lane, _EVALUATION), self._looks)
            self._perturb(arena, noise)

    @torch.no_grad()
    def _begin(self) -> None:
        """A draw that is learnt from."""
        if self.count and not all(arena.keep_product() for arena in self.arenas):
            self.count = 0  # a loss scaler saw it and skipped the step: that draw is over
        for arena in self.arenas:
            for p in arena.params:
                p.grad = None
        self._sample()

    def _sample(self) -> None:
        """New noise, and weights that carry it."""
        for arena in self.arenas:
            _fill(arena.noise, arena, arena.lane, arena.group["draws"])
            self._perturb(arena, arena.noise)
        for group in {id(arena.group): arena.group for arena in self.arenas}.values():
            group["draws"] += 1
        self.reduction.start(self.arenas)

    def _perturb(self, arena: Arena, noise: Flat) -> None:
        self._sampled.append(arena)
        arena.perturb(noise)

    @torch.no_grad()
    def restore(self) -> None:
        """The means of whatever has been perturbed, and of nothing else: the other means may be out of date."""
        for arena in self._sampled:
            arena.restore()
        self._sampled.clear()

    @torch.no_grad()
    def _finish(self, earlier: Mapping[Tensor, Tensor | None]) -> None:
        """Average the draw that ends into those before it, and leave the average gradient in .grad."""
        self.reduction.gather(self.arenas)
        self.count += 1
        if self.count > 1:
            for arena in self.arenas:
                arena.average(earlier, 1 / self.count)

    @torch.no_grad()
    def _roll_back(self, earlier: Mapping[Tensor, Tensor | None]) -> Phase:
        """Go back to the draws before the one that failed."""
        for p, gradient in earlier.items():
            p.grad = gradient
        if not self.count:
            return Phase.MEANS
        for arena in self.arenas:
            arena.recover_noise()
        return Phase.PENDING

    @torch.no_grad()
    def sample_until_step(self) -> None:
        """A new draw, or the one that stands, which eval() may have taken from the weights."""
        if self.phase is Phase.MEANS:
            self.refuse_foreign_gradients()
            try:
                self._sample()
            except BaseException:
                self.restore()
                raise
            self.phase = Phase.STANDING
            return
        if all(p.grad is None for arena in self.arenas for p in arena.params):
            self.reduction.start(self.arenas)  # the gradients were thrown away: a skipped step
        if not self.perturbed:
            for arena in self.arenas:
                self._perturb(arena, arena.noise)

    def forget(self) -> None:
        """Drop any draw that waits for step."""
        self.phase, self.count = Phase.MEANS, 0

    def forget_gradients(self) -> None:
        """After zero_grad(): draws that wait for step() are void, the noise the weights carry is not."""
        if self.phase is Phase.PENDING:
            self.forget()
        else:
            self.reduction.start(self.arenas)

    @torch.no_grad()
    def consume(self) -> None:
        """Update means and curvatures with the draws at hand."""
        if self.phase is Phase.STANDING:
            self.reduction.gather(self.arenas)
        if not self.perturbed:
            for arena in self.arenas:
                arena.accept_changes()
        for arena in self.arenas:
            arena.update()
            for p in arena.params:
                if p.grad is not None:
                    setattr(p.grad, _SPENT, p.grad._version)
        self._sampled.clear()  # the update has put the means in place
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


def _fill(noise: Flat, arena: Arena, lane: tuple[int, ...], draw: int) -> None:
    seeds = arena.group["seed"]
    if isinstance(seeds, int):
        fill_normal(noise.whole, seeds, lane, draw)
        return
    # The rows' seeds tell them apart, whatever group they are in.
    size = arena.params[0].numel() // len(seeds)
    for row, seed in zip(noise.whole[: size * len(seeds)].split(size), seeds, strict=True):
        fill_normal(row, seed, (0, *lane[1:]), draw)


def _arenas(index: int, group: dict[str, Any], rank: int) -> Iterator[Arena]:
    """Trainable parameters of a group that can share an arena, each with the lane of its noise."""
    found: dict[Any, list[Tensor]] = {}
    for p in group["params"]:
        if p.requires_grad:
            place = coordinate(p) if is_sharded(p) else (rank,)
            found.setdefault((p.device, p.dtype, is_sharded(p), place), []).append(p)
    for number, ((_, _, sharded, place), params) in enumerate(found.items()):
        if sharded:
            group["seed"] = agree(group["seed"], params[0])
        yield Arena(group, params, (index, number, *place))
