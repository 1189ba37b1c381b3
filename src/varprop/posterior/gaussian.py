"""Posterior: an immutable diagonal Gaussian over named parameters."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from varprop.errors import PosteriorError
from varprop.graph.output import Output
from varprop.moments import Moments
from varprop.posterior import adam, binding, diagonal, file, fisher, flat, ivon, laplace, names, swag, tensors, vi
from varprop.posterior.samples import Source
from varprop.posterior.samples import moments as moments_of

if TYPE_CHECKING:
    from torch.optim import Optimizer


class Posterior(Mapping[str, Moments]):
    """Named means and variances: ``posterior["head.weight"]`` is a ``Moments``.

    A parameter that is not named is deterministic. An empty posterior is legal: then only the inputs can be random.
    Build one with a ``from_…`` method or ``load``; the constructor itself checks nothing.
    """

    def __init__(self, moments: Mapping[str, Moments]) -> None:
        self._moments = dict(moments)

    @classmethod
    def from_tensors(cls, mean: Mapping[str, Tensor], var: Mapping[str, Tensor]) -> Posterior:
        """Means and variances by parameter name. They are checked, detached and copied."""
        pairs = tensors.checked(mean, var)
        return cls({name: Moments(pair.mean.clone(), pair.var.clone()) for name, pair in pairs.items()})

    @classmethod
    def _read(cls, call: str, source: Callable[..., Mapping[str, Moments]], model: nn.Module, *args: Any) -> Posterior:
        """What a source knows of a model, by its names, in its dtypes and on its devices; ``call`` is for messages."""
        inner = binding.unwrapped(binding.check_model(model, call))
        found = cls(binding.cast_to_model(model, source(inner, *args)))
        return cls.from_tensors(found.mean, found.var)

    @classmethod
    def from_ivon(cls, model: nn.Module, optimizer: Optimizer | Mapping[str, Any]) -> Posterior:
        """The posterior learnt by an IVON optimizer; ``optimizer`` may also be its ``state_dict()``.

        Means are the model's parameters as they are now, variances 1/(ess·(hess + weight_decay)). Parameters the
        optimizer does not hold are deterministic. A state dict holds no names unless the optimizer was given
        ``model.named_parameters()``: without them its parameters are taken to be in the order of
        ``model.parameters()``, all of them or only the trainable ones; several groups are told apart by shapes.
        """
        return cls._read("from_ivon(model, optimizer)", ivon.moments, model, optimizer)

    @classmethod
    def from_adam(
        cls,
        model: nn.Module,
        optimizer: Optimizer | Mapping[str, Any] | str | os.PathLike[str],
        *,
        batch_size: float = 1,
        examples: float | None = None,
        damping: float = 1.0,
    ) -> Posterior:
        """A posterior from the second moments that Adam, AdamW, NAdam or RAdam kept while it trained the model.

        ``optimizer`` may also be its ``state_dict()``, the folder of a checkpoint of Hugging Face's Trainer, or a
        ``.ckpt`` file of Lightning; files are read without unpickling. Means are the model's weights as they are now;
        what was frozen is deterministic. Parameters without names are matched as by ``from_ivon``.

        The curvature of a weight is h = batch_size · v/(1 − β₂ᵗ), its variance 1/(examples · (h + δ)). The running
        mean v is of squares of a batch's mean gradient, so ``batch_size`` (all devices and accumulated steps counted)
        brings it to single examples. δ = ``damping`` · mean(h) is relative: the shape of the posterior does not depend
        on the scale of the loss, and a weight the loss does not see is at most 1 + 1/damping times as wide, in
        variance, as one of average curvature.

        ``examples`` is the number of training examples. Without it the width is set so that the average variance is
        that of ``isotropic(model)``, and ``batch_size`` changes nothing: a trained network's gradients are so small
        that the number of examples alone often gives a posterior much too wide. Calibration finds the width.
        """
        options = batch_size, examples, damping
        return cls._read("from_adam(model, optimizer)", adam.moments, model, optimizer, *options)

    @classmethod
    def isotropic(cls, model: nn.Module, std: float | None = None) -> Posterior:
        """One standard deviation for all weights: what a checkpoint allows of which nothing else is known.

        All trainable floating point parameters are random, tied ones once; biases and norms too, where so small a
        variance does little. Without ``std`` it is a tenth of the root mean square of the model's weight matrices.
        Calibration finds the width, ``restrict`` leaves layers out.
        """
        return cls._read("isotropic(model)", diagonal.isotropic, model, std)

    @classmethod
    def from_fisher(
        cls,
        model: nn.Module,
        batches: Any,
        link: Any = None,
        *,
        examples: float | None = None,
        damping: float = 1.0,
        seed: int = 0,
        output: Output = None,
        progress: bool = True,
    ) -> Posterior:
        """A diagonal Laplace approximation: the Fisher information of each weight, in one pass over training data.

        h = E[(∂ log p(y|x)/∂w)²] is a mean over the examples x, with y from the model's own prediction: exact for up
        to 16 outputs, else with one y drawn for each example, from ``seed``. Labels in ``batches`` are not looked at.
        ``link`` says what is predicted: ``links.Softmax()`` (the default), ``links.Sigmoid()`` for several labels at
        once, ``links.Gaussian(noise_std)`` for regression. A few thousand examples are enough.

        Variances are 1/(examples · (h + δ)), ``examples`` and ``damping`` as in ``from_adam``. Gradients of single
        examples are taken several at a time, or one by one for models that ``torch.func.vmap`` refuses.
        """
        options = link, examples, damping, seed, output, progress
        return cls._read("from_fisher(model, batches)", fisher.moments, model, batches, *options)

    @classmethod
    def from_laplace(cls, model: nn.Module, la: Any) -> Posterior:
        """A fitted diagonal Laplace approximation of laplace-torch, over all weights, the last layer or a subnetwork.

        ``la = Laplace(model, "classification", subset_of_weights="all", hessian_structure="diag"); la.fit(loader)``,
        then ``Posterior.from_laplace(model, la)``. Mean and variance are laplace-torch's own: prior precision,
        temperature and noise are in. ``model`` is the fitted one, a copy of it, or the model inside a wrapper that
        was fitted.
        """
        return cls._read("from_laplace(model, la)", laplace.moments, model, la)

    @classmethod
    def from_swag(cls, model: nn.Module, source: swag.SWAG | Source, square: Source | None = None) -> Posterior:
        """Diagonal SWAG: the mean and the variance of the weights along training.

        ``collector = SWAG()``, ``collector.update_parameters(model)`` after each epoch, then
        ``Posterior.from_swag(model, collector)``. Or the running averages of w and w², each a module, a state dict or
        a safetensors file: negative differences within 64 roundings of E[w²] count as 0, larger ones are an error.

        The variance is that of the collected weights (divided by their number), without the factor ½ of SWAG's sum of
        a diagonal and a low-rank part. Buffers are the model's own: batch norm needs
        ``model.load_state_dict(posterior.mean, strict=False)`` and then ``swa_utils.update_bn(loader, model)``.
        """
        return cls._read("from_swag(model, swag)", swag.moments, model, source, square)

    @classmethod
    def from_samples(cls, model: nn.Module, samples: Iterable[Source]) -> Posterior:
        """The Gaussian with the mean and the unbiased variance (n − 1) of each weight over n ≥ 2 samples.

        ``Posterior.from_samples(model, ["epoch8.safetensors", "epoch9.safetensors"])``. A sample is a model, a state
        dict or a safetensors file; they are read one at a time. What all samples and the model share is
        deterministic; buffers are the model's own.

        For samples around one mode: SGD iterates, MCMC draws, fine-tunings of one model. Not for deep ensembles:
        networks trained from different initialisations lie in different modes, and the mean of their weights in none.
        """
        return cls._read("from_samples(model, samples)", moments_of, model, samples)

    @classmethod
    def from_vi(cls, model: nn.Module, bayesian: nn.Module) -> Posterior:
        """The posterior of a network of mean-field layers (bayesian-torch, torchbnn, blitz, …).

        ``dnn_to_bnn(bayesian, priors)``, train, then ``Posterior.from_vi(model, bayesian)``, where ``model`` is the
        plain network with the same module names. Only random weights are in the posterior, so all others must have
        the same values in both: ``model.load_state_dict(bayesian.state_dict(), strict=False)`` copies them, and
        batch norm's statistics.
        """
        return cls._read("from_vi(model, bayesian)", vi.moments, model, bayesian)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Posterior:
        """Read what ``save`` wrote, onto the CPU. Nothing in the file is executed."""
        return cls(file.read(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file with tensors ``mean.<name>`` and ``var.<name>``."""
        file.write(path, self._moments)

    def restrict(self, *patterns: str) -> Posterior:
        """Only the parameters selected by at least one pattern; the others become deterministic.

        Patterns match whole path segments: ``"blocks.1"`` and ``"blocks.1.*"`` select everything below ``blocks.1``
        and nothing of ``blocks.10``. ``*``, ``?`` and ``[…]`` stay within a segment, ``**`` spans any number of
        them: ``"**.bias"`` selects all biases.
        """
        return Posterior({name: self._moments[name] for name in names.select(self._moments, patterns)})

    def scaled(self, factor: float) -> Posterior:
        """All variances times ``factor``: a wider posterior if it is above 1, a narrower one below."""
        diagonal.check_positive(factor=factor)
        found = {name: Moments(pair.mean, pair.var * factor) for name, pair in self._moments.items()}
        for name, pair in found.items():
            if bool((~pair.var.isfinite() | ((pair.var == 0) & (self._moments[name].var > 0))).any()):
                raise PosteriorError(f"{pair.var.dtype} cannot hold the variances of {name!r} times {factor:g}")
        return Posterior(found)

    def sample(self, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """One draw of the named parameters, as ``torch.func.functional_call`` takes them."""
        return next(self.samples(generator))

    def samples(
        self, generator: torch.Generator | None = None, *, in_place: bool = False
    ) -> Iterator[dict[str, Tensor]]:
        """Draws without end, each in two passes over the weights: all tensors of a dtype lie side by side for it.

        The noise is drawn where the generator lives, so that a seed means the same draw wherever the tensors are,
        and in the order of names: that of insertion changes in a round trip through a file. Draws that are ``in_place``
        are the same tensors with new numbers, which is faster.
        """
        return flat.draws(self._moments, generator, in_place)

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
