"""Posterior: an immutable diagonal Gaussian over named parameters."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from varprop.errors import PosteriorError
from varprop.moments import Moments
from varprop.posterior import binding, ivon, names, storage, tensors

if TYPE_CHECKING:
    from torch.optim import Optimizer


class Posterior(Mapping[str, Moments]):
    """Named means and variances: ``posterior["head.weight"]`` is a ``Moments``.

    A parameter that is not named is deterministic. An empty posterior is legal: then only the inputs can be random.
    Build one with ``from_tensors``, ``from_ivon`` or ``load``; the constructor itself checks nothing.
    """

    def __init__(self, moments: Mapping[str, Moments]) -> None:
        self._moments = dict(moments)

    @classmethod
    def from_tensors(cls, mean: Mapping[str, Tensor], var: Mapping[str, Tensor]) -> Posterior:
        """Means and variances by parameter name. They are checked, detached and copied."""
        return cls({name: tensors.copied(pair) for name, pair in tensors.checked(mean, var).items()})

    @classmethod
    def from_ivon(cls, model: nn.Module, optimizer: Optimizer | Mapping[str, Any]) -> Posterior:
        """The posterior an IVON optimizer has learnt; ``optimizer`` may also be its ``state_dict()``.

        Means are the model's parameters as they are now, variances 1/(ess·(hess + weight_decay)). Parameters the
        optimizer does not hold are deterministic. A state dict holds no names unless the optimizer was given
        ``model.named_parameters()``: without them its parameters are taken to be in the order of
        ``model.parameters()``, all of them or only the trainable ones.
        """
        return cls.from_tensors(*ivon.moments(model, optimizer))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Posterior:
        """Read what ``save`` wrote, onto the CPU. Nothing in the file is executed."""
        return cls(storage.read(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file with tensors ``mean.<name>`` and ``var.<name>``."""
        storage.write(path, self._moments)

    def restrict(self, *patterns: str) -> Posterior:
        """Only the parameters selected by at least one pattern; the others become deterministic.

        Patterns match whole path segments: ``"blocks.1"`` and ``"blocks.1.*"`` select everything below ``blocks.1``
        and nothing of ``blocks.10``. ``*``, ``?`` and ``[…]`` stay within a segment, ``**`` spans any number of
        them: ``"**.bias"`` selects all biases.
        """
        return Posterior({name: self._moments[name] for name in names.select(self._moments, patterns)})

    def sample(self, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """One draw of the named parameters, as ``torch.func.functional_call`` takes them.

        The noise is drawn where the generator lives, so that a seed means the same draw wherever the tensors are.
        """
        draw = {}
        for name in sorted(self._moments):  # not in the order of insertion, which a round trip through a file changes
            mean, std = self._moments[name].mean, self._moments[name].std
            device = mean.device if generator is None else generator.device
            noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=device)
            draw[name] = mean + std * noise.to(mean.device)
        return {name: draw[name] for name in self._moments}

    def to(self, device: torch.device | str | int | None = None, dtype: torch.dtype | None = None) -> Posterior:
        """The same posterior on another device or in another dtype."""
        if isinstance(device, torch.dtype):
            raise PosteriorError(f"to(device, dtype): name the dtype, posterior.to(dtype={device})")
        if dtype is not None and not dtype.is_floating_point:
            raise PosteriorError(f"a posterior is floating point, it cannot be {dtype}")
        place = None if device is None else torch.device(device)
        return Posterior({name: tensors.cast(name, pair, place, dtype) for name, pair in self._moments.items()})

    def resolve(self, model: nn.Module) -> dict[str, Moments]:
        """Moments by the model's own parameter names, tied weights resolved, or an error that lists all mismatches."""
        return binding.bind(self._moments, model)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._moments)

    @property
    def mean(self) -> dict[str, Tensor]:
        return {name: pair.mean for name, pair in self._moments.items()}

    @property
    def var(self) -> dict[str, Tensor]:
        return {name: pair.var for name, pair in self._moments.items()}

    def __getitem__(self, name: str) -> Moments:
        return self._moments[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._moments)

    def __len__(self) -> int:
        return len(self._moments)

    # A mapping compares by its items, but tensors do not compare to one truth value: equal means identical.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        entries = sum(pair.mean.numel() for pair in self._moments.values())
        if not entries:
            return f"<Posterior: {len(self)} tensors, 0 entries>"
        total = sum(float(pair.var.sum(dtype=torch.float32)) for pair in self._moments.values())
        return f"<Posterior: {len(self)} tensors, {entries:,} entries, rms std {math.sqrt(total / entries):.3g}>"
