"""Arena: parameters of one group whose state lies in flat vectors, so that one call works on all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from varprop.errors import SamplingError, SettingError
from varprop.optim.settings import Settings
from varprop.optim.sharded import is_sharded, like, local, local_gradient
from varprop.optim.update import PIECE, Scratch, scale_, step_

_ALL = slice(None)
_ALIGN = 16  # entries; vectorised kernels want each part to begin on a boundary
State = MutableMapping[Any, Any]


class Flat(NamedTuple):
    """One vector and its parts, a view per parameter in the parameter's shape and memory order."""

    whole: Tensor
    parts: list[Tensor]


class Arena:
    """Parameters that share a group, a device, a dtype and a lane of noise.

    The optimizer's ``state`` holds views of the vectors, one per parameter. It stays the truth: an arena takes over
    whatever it finds there, so loading, copying and regrouping parameters work as in any optimizer.
    """

    def __init__(self, group: dict[str, Any], params: Sequence[Tensor], lane: tuple[int, ...]) -> None:
        self.group, self.params, self.lane = group, list(params), lane
        self._sharded = is_sharded(self.params[0])
        self._held: list[State] = []  # the optimizer's state of each parameter
        first = local(self.params[0])
        self.narrow = torch.finfo(first.dtype).bits < 32  # then the mean itself is state: bfloat16 forgets small steps
        self.dtype = torch.float32 if self.narrow else first.dtype
        self.device = first.device
        self.offsets = [0]
        for weight in self.weights():
            self.offsets.append(self.offsets[-1] + -(-weight.numel() // _ALIGN) * _ALIGN)
        self.noise, self.mean, self.hess, self.momentum, self._scale = (self.new() for _ in range(5))
        self._scaled_for: tuple[float, int] | None = None
        self.scratch = Scratch(self.noise.whole)
        # On a CPU a portion goes through all of a step before the next one does, so that it stays in the cache.
        self._portions = list(_portions(self.offsets, PIECE if self.device.type == "cpu" else self.offsets[-1]))
        self._kept = 0  # this many parameters have their means in self.mean
        self._spare: dict[str, Flat] = {}
        self.averaged = False  # ĝ·z was averaged over draws or ranks: it is "product", belonging to the gradient "left"
        self.reached: list[bool] = []  # by a gradient, in the draws before the present one
        self._versions: list[int] = []
        kept = {"momentum": self.momentum, "hess": self.hess} | ({"mean": self.mean} if self.narrow else {})
        self._exposed = [
            {key: like(p, flat.parts[index]) for key, flat in kept.items()} for index, p in enumerate(self.params)
        ]

    def new(self) -> Flat:
        whole = torch.zeros(self.offsets[-1], dtype=self.dtype, device=self.device)
        parts = []
        for weight, offset in zip(self.weights(), self.offsets, strict=False):
            stride = torch.empty_like(weight, device="meta").stride()  # that of a dense copy
            parts.append(whole.as_strided(weight.shape, stride, offset))
        return Flat(whole, parts)

    def spare(self, name: str) -> Flat:
        """A vector that only some ways of training need."""
        if name not in self._spare:
            self._spare[name] = self.new()
        return self._spare[name]

    def weights(self) -> list[Tensor]:
        return [local(p) for p in self.params] if self._sharded else self.params

    def gradients(self) -> list[Tensor | None]:
        """The gradients in the dtype of the state."""
        found = [local_gradient(p) if self._sharded else p.grad for p in self.params]
        if any(g is not None and g.is_sparse for g in found):
            raise SamplingError("IVON needs dense gradients: build embeddings with sparse=False")
        return [g if g is None or g.dtype == self.dtype else g.to(self.dtype) for g in found]

    def adopt(self, state: State) -> None:
        """Put the vectors' views into the optimizer's state, with the values it has or else the initial ones."""
        self._held = [state[p] for p in self.params]
        for index, (p, held, exposed) in enumerate(zip(self.params, self._held, self._exposed, strict=True)):
            held.setdefault("step", 0)
            for key, view in exposed.items():
                found = held.get(key)
                if found is view:
                    continue
                if found is not None and found.shape != view.shape:
                    shapes = f"{tuple(found.shape)}, the parameter {tuple(view.shape)}"
                    raise SettingError(f"{key!r} of parameter {index} has shape {shapes}: the state is another model's")
                local(view).copy_(self._initial(key, p) if found is None else local(found))
                held[key] = view

    def _initial(self, key: str, parameter: Tensor) -> Tensor:
        if key == "mean":
            return local(parameter)
        return torch.tensor(float(self.group["hess_init"]) if key == "hess" else 0.0, dtype=torch.float64)

    def perturb(self, noise: Flat, draw: Callable[[Tensor], None] | None = None) -> None:
        """Take the weights as the means, and add noise of the posterior's width, z/√(λ(h + δ)).

        ``draw`` fills the noise first; without it, the noise is what it was.
        """
        settings = Settings.of(self.group)
        wanted = settings.weight_decay, self.hess.whole._version
        if self._scaled_for != wanted:
            scale_(self._scale.whole, self.hess.whole, settings.weight_decay)
            self._scaled_for = wanted
        weights, self._kept = self.weights(), 0
        if draw is not None:
            draw(noise.whole)
        for some in self._portions:
            self._keep_means(some)
            self._kept = some.stop
            means, width = self.mean.parts[some], settings.ess**-0.5
            if self.narrow:
                sample = torch._foreach_addcmul(means, noise.parts[some], self._scale.parts[some], value=width)
                torch._foreach_copy_(weights[some], sample)
            else:
                torch._foreach_addcmul_(weights[some], noise.parts[some], self._scale.parts[some], value=width)

    def _keep_means(self, some: slice) -> None:
        """Means that are wider than the weights change only where the weights have been changed since."""
        weights, means = self.weights()[some], self.mean.parts[some]
        if not self.narrow:
            torch._foreach_copy_(means, weights)
            return
        for weight, mean in zip(weights, means, strict=True):
            mean.copy_(torch.where(mean.to(weight.dtype) == weight, mean, weight.to(mean.dtype)))

    def restore(self) -> None:
        """The means back in place, of those weights that perturb() has come to: an interrupt may have stopped it."""
        weights = self.weights()
        if self._kept:  # foreach functions do not take nothing
            torch._foreach_copy_(weights[: self._kept], self.mean.parts[: self._kept])
        self._versions = [weight._version for weight in weights]

    def heed_changes(self) -> None:
        """Take over weights that were changed by hand after the means were restored."""
        if [weight._version for weight in self.weights()] != self._versions:
            self._keep_means(slice(None))

    def write_product(self, out: Flat, gradients: Sequence[Tensor | None], some: slice = _ALL) -> None:
        """ĝ·z into ``out``, where there are gradients.

        With one draw it is .grad times the noise. Otherwise it was averaged before .grad was complete, and what has
        been done to .grad since (unscaling, clipping) is repeated on it, entry by entry.
        """
        has = [index for index in range(len(self.params))[some] if gradients[index] is not None]
        present = [g for g in gradients[some] if g is not None]
        targets = [out.parts[index] for index in has]
        if not present:
            return
        if not self.averaged:
            if out is not self.noise:
                torch._foreach_copy_(targets, [self.noise.parts[index] for index in has])
            torch._foreach_mul_(targets, present)
            return
        products, lefts = self.spare("product").parts, self.spare("left").parts
        for index, target, gradient in zip(has, targets, present, strict=True):
            ratio = torch.where(lefts[index] == 0, 1.0, gradient / lefts[index])
            torch.mul(products[index], ratio, out=target)

    def leave_averages(self) -> None:
        """From now on ĝ·z is "total product", and belongs to what .grad holds."""
        self.spare("product").whole.copy_(self.spare("total product").whole)
        for left, gradient in zip(self.spare("left").parts, self.gradients(), strict=True):
            if gradient is not None:
                left.copy_(gradient)
        self.averaged = True

    def update(self) -> None:
        """Move means and curvatures by one step; parameters without a gradient stay as they are."""
        settings, weights, gradients = Settings.of(self.group), self.weights(), self.gradients()
        for some in self._runs(gradients):
            self.write_product(self.noise, gradients, some)
            present = [g for g in gradients[some] if g is not None]  # all of them, in a run
            torch._foreach_lerp_(self.momentum.parts[some], present, 1 - settings.beta1)
            where = slice(self.offsets[some.start], self.offsets[some.stop])
            flats = (self.mean, self.momentum, self.hess, self._scale, self.noise)
            mean, momentum, hess, scale, product = (flat.whole[where] for flat in flats)
            step = self._held[some.start]["step"] + 1
            step_(mean, momentum, hess, scale, product, step, settings, self.scratch)
            torch._foreach_copy_(weights[some], self.mean.parts[some])
            for held in self._held[some]:
                held["step"] = step
        still = [index for index, gradient in enumerate(gradients) if gradient is None]
        if still:
            torch._foreach_copy_([weights[i] for i in still], [self.mean.parts[i] for i in still])
        self._scaled_for = settings.weight_decay, self.hess.whole._version
        self.averaged = False

    def _runs(self, gradients: Sequence[Tensor | None]) -> list[slice]:
        """Neighbouring parameters that have gradients, take the same step and are in one portion."""
        steps = [None if g is None else held["step"] for held, g in zip(self._held, gradients, strict=True)]
        cuts = {i for i in range(1, len(steps)) if steps[i] != steps[i - 1]} | {some.stop for some in self._portions}
        bounds = sorted(cuts | {0})
        return [slice(first, last) for first, last in itertools.pairwise(bounds) if steps[first] is not None]


def _portions(offsets: Sequence[int], size: int) -> Iterator[slice]:
    """Neighbouring parameters, ``size`` entries or a little more at a time."""
    first = 0
    for last in range(1, len(offsets)):
        if offsets[last] - offsets[first] >= size or last == len(offsets) - 1:
            yield slice(first, last)
            first = last
