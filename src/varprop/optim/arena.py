"""Arena: parameters of one group whose state lies in flat vectors, so that one call works on all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from varprop.errors import SamplingError, SettingError
from varprop.optim.settings import Settings
from varprop.optim.sharded import is_sharded, like, local, local_gradient
from varprop.optim.update import LARGEST, PIECE, step_

_ALIGN = 16  # entries; vectorised kernels want each part to begin on a boundary
_TINY = 1e-20  # a gradient that nobody notices, yet large enough to divide by
State = MutableMapping[Any, Any]


class Flat(NamedTuple):
    """One vector and its parts, a view per parameter in the parameter's shape and memory order."""

    whole: Tensor
    parts: list[Tensor]


class Arena:
    """Parameters that share a group, a device, a dtype and a lane of noise.

    The optimizer's ``state`` holds views of the vectors, one per parameter. It stays the truth: an arena takes over
    whatever it finds there, so loading, copying and regrouping parameters work as in any optimizer.

    ĝ·z, which the curvature is learnt from, is always .grad times ``noise``: so what is done to .grad before the step
    (unscaling, clipping) acts on it too. Where ĝ is an average over draws or ranks, ``noise`` is not the z of any of
    them but the average of ĝ·z divided by that of ĝ.
    """

    def __init__(self, group: dict[str, Any], params: Sequence[Tensor], lane: tuple[int, ...]) -> None:
        self.group, self.params, self.lane = group, list(params), lane
        self._sharded = is_sharded(self.params[0])
        self._states: list[State] = []  # the optimizer's, of each parameter
        first = local(self.params[0])
        self.narrow = torch.finfo(first.dtype).bits < 32  # then the mean itself is state: bfloat16 forgets small steps
        self.dtype = torch.float32 if self.narrow else first.dtype
        self.device = first.device
        self.offsets = [0]
        for weight in self.weights():
            self.offsets.append(self.offsets[-1] + -(-weight.numel() // _ALIGN) * _ALIGN)
        self.noise, self.mean, self.hess, self.momentum, self._scale = (self.new() for _ in range(5))
        self._scaled_for: tuple[float, int] | None = None
        on_cpu, entries = self.device.type == "cpu", self.offsets[-1]
        self._work = self.noise.whole.new_empty(2, min(entries, LARGEST)) if on_cpu else None
        # On a CPU a portion goes through all of a step before the next one does, so that it stays in the cache.
        self._portions = list(_portions(self.offsets, PIECE if on_cpu else entries))
        self._kept = 0  # this many parameters have their means in self.mean
        self._versions: list[int] = []
        kept = {"momentum": self.momentum, "hess": self.hess} | ({"mean": self.mean} if self.narrow else {})
        self._exposed = [
            {key: like(p, flat.parts[index]) for key, flat in kept.items()} for index, p in enumerate(self.params)
        ]

    @cached_property
    def _product(self) -> Flat:
        """ĝ·z of the draws before the present one, for those who take several."""
        return self.new()

    def new(self) -> Flat:
        whole = torch.zeros(self.offsets[-1], dtype=self.dtype, device=self.device)
        parts = []
        for weight, offset in zip(self.weights(), self.offsets, strict=False):
            stride = torch.empty_like(weight, device="meta").stride()  # that of a dense copy
            parts.append(whole.as_strided(weight.shape, stride, offset))
        return Flat(whole, parts)

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
        self._states = [state[p] for p in self.params]
        for index, (p, own, exposed) in enumerate(zip(self.params, self._states, self._exposed, strict=True)):
            own.setdefault("step", 0)
            for key, view in exposed.items():
                found = own.get(key)
                if found is view:
                    continue
                if found is not None and found.shape != view.shape:
                    shapes = f"{tuple(found.shape)}, the parameter {tuple(view.shape)}"
                    raise SettingError(f"{key!r} of parameter {index} has shape {shapes}: the state is another model's")
                local(view).copy_(self._initial(key, p) if found is None else local(found))
                own[key] = view

    def _initial(self, key: str, parameter: Tensor) -> Tensor:
        if key == "mean":
            return local(parameter)
        return torch.tensor(float(self.group["hess_init"]) if key == "hess" else 0.0, dtype=torch.float64)

    def perturb(self, noise: Flat) -> None:
        """Take the weights as the means, and add noise of the posterior's width, z/√(λ(h + δ))."""
        settings = Settings.of(self.group)
        wanted = settings.weight_decay, self.hess.whole._version
        if self._scaled_for != wanted:
            torch.add(self.hess.whole, settings.weight_decay, out=self._scale.whole).rsqrt_()
            self._scaled_for = wanted
        weights, self._kept = self.weights(), 0
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

    def accept_changes(self) -> None:
        """Take over weights that were changed by hand after the means were restored."""
        if [weight._version for weight in self.weights()] != self._versions:
            self._keep_means(slice(None))

    def keep_product(self) -> bool:
        """Set ĝ·z aside, before the next draw overwrites the noise. Whether it is finite."""
        for product, noise, gradient in zip(self._product.parts, self.noise.parts, self.gradients(), strict=True):
            _ = product.zero_() if gradient is None else torch.mul(noise, gradient, out=product)
        return bool(self._product.whole.isfinite().all())

    def average(self, earlier: Mapping[Tensor, Tensor | None], share: float) -> None:
        """Average a draw into those before it, which left ``earlier`` in .grad; no gradient counts as zero."""
        for index, (p, product) in enumerate(zip(self.params, self._product.parts, strict=True)):
            before = earlier[p]
            if p.grad is None and before is not None:
                p.grad = torch.zeros_like(before)
            if (gradient := local_gradient(p)) is not None:
                product.lerp_(gradient * self.noise.parts[index], share)
                _ = gradient.mul_(share) if before is None else gradient.lerp_(local(before), 1 - share)
        self.recover_noise()

    def recover_noise(self) -> None:
        """Take the noise that .grad was averaged under from the product that was kept."""
        for index, product in enumerate(self._product.parts):
            self.set_product(index, product)

    def set_product(self, index: int, product: Tensor, average: Tensor | None = None) -> None:
        """Choose the noise so that ``product`` is noise times .grad, or times what .grad was before it was scaled.

        Where gradients cancel to zero .grad becomes tiny instead: zero times any noise would lose the product.
        """
        if (gradient := local_gradient(self.params[index])) is not None:
            average = gradient if average is None else average
            finfo = torch.finfo(gradient.dtype)
            tiny = max(_TINY, finfo.smallest_normal * finfo.eps)
            gradient.masked_fill_((gradient == 0) & (product != 0), tiny)
            torch.div(product, torch.where(average == 0, tiny, average), out=self.noise.parts[index])

    def update(self) -> None:
        """Move means and curvatures by one step; parameters without a gradient stay as they are."""
        settings, weights, gradients = Settings.of(self.group), self.weights(), self.gradients()
        for some in self._runs(gradients):
            present = [g for g in gradients[some] if g is not None]  # all of them, in a run
            torch._foreach_mul_(self.noise.parts[some], present)
            torch._foreach_lerp_(self.momentum.parts[some], present, 1 - settings.beta1)
            where = slice(self.offsets[some.start], self.offsets[some.stop])
            flats = (self.mean, self.momentum, self.hess, self._scale, self.noise)
            mean, momentum, hess, scale, product = (flat.whole[where] for flat in flats)
            step = self._states[some.start]["step"] + 1
            step_(mean, momentum, hess, scale, product, step, settings, self._work)
            torch._foreach_copy_(weights[some], self.mean.parts[some])
            for own in self._states[some]:
                own["step"] = step
        still = [index for index, gradient in enumerate(gradients) if gradient is None]
        if still:
            torch._foreach_copy_([weights[i] for i in still], [self.mean.parts[i] for i in still])
        self._scaled_for = settings.weight_decay, self.hess.whole._version

    def _runs(self, gradients: Sequence[Tensor | None]) -> list[slice]:
        """Neighbouring parameters that have gradients, take the same step and are in one portion."""
        steps = [None if g is None else own["step"] for own, g in zip(self._states, gradients, strict=True)]
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
