"""Expectations under the Gaussian of the logits: the same input, the same output.

Of a softmax over fixed points, in work tensors of bounded size, with all but the likeliest of many classes taken
together; of a sigmoid by quadrature, and its log in any tail.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from varprop.errors import InputError
from varprop.kernels.pointwise import moments_of
from varprop.moments import Moments
from varprop.rules.logistic import sigmoid

BUDGET = 1 << 24
"""Entries of the largest work tensor: 64 MB in float32."""
USUAL_ROWS = 64
"""For which exported graphs keep to the budget."""
MOST_SAMPLES = 1 << 20
MOST_NUMBERS = 1 << 30
"""Of all points together: 8 GB while they are made."""
SOBOL_ENDS = torch.quasirandom.SobolEngine.MAXDIM
_SEED = 0x5EED
MANY = 2048
"""Classes; of more than these, only the leading ones are sampled, where the others' sum is steady enough:"""
LEADING = 256
STEADY = 0.5
"""its standard deviation as a share of it."""
RARE = 1e-4
"""Probabilities of a sigmoid below are computed in log space where their log is asked for."""


def over_samples(total: Callable[..., Tensor], logits: Moments, samples: int) -> Tensor:
    """The mean over the points of what ``total(mean, std, points)`` sums; leading dimensions are examples."""
    results = []
    for points, mean, std in pieces(logits, samples):
        parts = [total(mean, std, some) for some in points]
        results.append(sum(parts[1:], parts[0]) / samples)
    result = torch.cat(results)
    return result.view(*logits.shape[:-1], *result.shape[1:])


def pieces(logits: Moments, samples: int, *targets: Tensor) -> Iterator[tuple[Any, ...]]:
    """Some points at a time, and means, standard deviations and targets of some rows: no product exceeds the budget."""
    mean, var = (x.reshape(-1, x.shape[-1]) for x in logits)
    points = normals(samples, mean.shape[-1], dtype=mean.dtype, device=mean.device)
    rows = max(1, BUDGET // points.numel())
    flat = (mean, root(var), *(target.reshape(-1) for target in targets))
    if torch.compiler.is_exporting():  # for any number of rows: nothing may depend on it
        yield points.split(max(1, BUDGET // (USUAL_ROWS * mean.shape[-1]))), *flat
        return
    for part in zip(*(x.split(rows) for x in flat), strict=True):
        yield points.split(max(1, BUDGET // max(1, part[0].numel()))), *part


def sampled(mean: Tensor, std: Tensor, points: Tensor) -> Tensor:
    """[rows, points, classes]"""
    return torch.addcmul(mean[:, None], std[:, None], points)


def root(var: Tensor) -> Tensor:
    """√v with a finite derivative at 0."""
    positive = var > 0
    return torch.where(positive, torch.where(positive, var, 1.0).sqrt(), 0.0)


@functools.lru_cache(maxsize=8)  # where they are used, so that they are not moved there for every batch
def normals(samples: int, dims: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``samples`` points of a standard normal distribution in ``dims`` dimensions, spread evenly.

    A scrambled Sobol set through the inverse normal distribution function. Sobol's numbers end at 21,201 dimensions;
    beyond, the points are pseudo-random and come in pairs ±z, so that their mean is 0 all the same.
    """
    if samples * dims > MOST_NUMBERS:
        raise InputError(f"{samples} points for {dims} classes are more than memory holds: take fewer samples")
    with ThreadPoolExecutor(1) as aside:  # where nothing is traced, and what is made can be used in calibration
        return aside.submit(_normals, samples, dims).result().to(device=device, dtype=dtype)


def _normals(samples: int, dims: int) -> Tensor:
    if dims > SOBOL_ENDS:
        half = torch.randn(-(-samples // 2), dims, generator=torch.Generator().manual_seed(_SEED))
        return torch.cat([half, -half])[:samples]
    uniform = torch.quasirandom.SobolEngine(dims, scramble=True, seed=_SEED).draw(samples, dtype=torch.float64)
    smallest = 2.0**-32  # Sobol's numbers have 30 bits and may be 0
    return torch.special.ndtri(uniform.clamp(smallest, 1 - smallest)).float()


@dataclass(frozen=True)
class Condensed:
    """The logits of the leading classes, and one without variance for all others; or of all classes as they are.

    The others' Σ eˣ of thousands of terms is taken for its mean, Σ exp(μ + v/2), and within it probabilities are as
    these terms. This is nearer to the truth than all classes by as many points, which are spread less evenly over more
    dimensions.
    """

    logits: Moments
    others: tuple[Tensor, Tensor, Tensor] | None = None
    """The numbers of the leading classes; log of the share of each class in that sum, −∞ of these; all variances."""

    @classmethod
    def of(cls, logits: Moments) -> Condensed:
        terms = logits.mean + logits.var / 2
        leading = terms.detach().topk(LEADING).indices
        terms = terms.scatter(-1, leading, -math.inf)
        rest = terms.logsumexp(-1, keepdim=True)
        mean = torch.cat([logits.mean.gather(-1, leading), rest], -1)
        moments = Moments(mean, F.pad(logits.var.gather(-1, leading), (0, 1)))
        return cls(moments, (leading, terms - rest, logits.var))

    def steady(self) -> Tensor:
        """Of each row, whether the others' sum varies little: the root of Σ exp(2μ + v)(eᵛ − 1) is small beside it."""
        assert self.others is not None
        _, log_share, var = self.others
        return (2 * log_share + var + torch.log(-torch.expm1(-var))).logsumexp(-1) < 2 * math.log(STEADY)

    def take(self, rows: Tensor) -> Condensed:
        assert self.others is not None
        leading, log_share, var = (x[rows] for x in self.others)
        return Condensed(Moments(*(x[rows] for x in self.logits)), (leading, log_share, var))

    def unfolded(self, probs: Tensor) -> Tensor:
        """The probabilities of all classes."""
        if self.others is None:
            return probs
        leading, log_share, _ = self.others
        return (log_share.exp() * probs[..., -1:]).scatter(-1, leading, probs[..., :-1])

    def folded(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """Where the class of each target is here, and −log of its share there."""
        if self.others is None:
            return target, torch.zeros_like(target)
        leading, log_share, _ = self.others
        place = leading == target[..., None]
        found = place.any(-1)
        share = log_share.gather(-1, target[..., None]).squeeze(-1)
        return torch.where(found, place.int().argmax(-1), LEADING), -torch.where(found, 0.0, share)

    @property
    def entropy_within(self) -> Tensor | float:
        """Of a class, given that it is one of the others: the mean over networks, log Σ eˣ − Σ x eˣ / Σ eˣ."""
        if self.others is None:
            return 0.0
        _, log_share, var = self.others
        share = log_share.exp()
        return (torch.special.entr(share) - share * var / 2).sum(-1)


def by_rows(function: Callable[..., Tensor], logits: Moments, *targets: Tensor) -> Tensor:
    """``function(condensed, *targets)``, of the leading classes where there are many and the others' sum is steady."""
    classes = logits.shape[-1]
    flat = *(x.reshape(-1, classes) for x in logits), *(target.reshape(-1) for target in targets)
    if classes <= MANY:
        results = [function(Condensed(Moments(*flat[:2])), *flat[2:])]
    elif torch.compiler.is_compiling() or torch.compiler.is_exporting():  # nothing may depend on the numbers
        few = Condensed.of(Moments(*flat[:2]))
        some, whole = function(few, *flat[2:]), function(Condensed(Moments(*flat[:2])), *flat[2:])
        results = [torch.where(few.steady().view(-1, *[1] * (some.ndim - 1)), some, whole)]
    else:
        size = max(1, BUDGET // classes)
        results = [_some_rows(function, *part) for part in zip(*(x.split(size) for x in flat), strict=True)]
    result = torch.cat(results)
    return result.view(*logits.shape[:-1], *result.shape[1:])


def _some_rows(function: Callable[..., Tensor], mean: Tensor, var: Tensor, *targets: Tensor) -> Tensor:
    few = Condensed.of(Moments(mean, var))
    steady = few.steady()
    if bool(steady.all()):
        return function(few, *targets)
    whole = function(Condensed(Moments(mean[~steady], var[~steady])), *(target[~steady] for target in targets))
    if not bool(steady.any()):
        return whole
    some = function(few.take(steady), *(target[steady] for target in targets))
    order = torch.cat([steady.nonzero(), (~steady).nonzero()]).squeeze(-1)
    return torch.cat([some, whole])[order.argsort()]


def mean_sigmoid(mean: Tensor, var: Tensor) -> Tensor:
    return moments_of(sigmoid, Moments(mean, var)).mean


def log_mean_sigmoid(mean: Tensor, var: Tensor) -> Tensor:
    """log E[σ(x)], also where the mean itself is no number above 0."""
    prob = mean_sigmoid(mean, var)
    far = prob < RARE
    result = torch.where(far, 1.0, prob).log()
    return result.masked_scatter(far, _log_tail(mean[far], var[far])) if bool(far.any()) else result


def _log_tail(mean: Tensor, var: Tensor) -> Tensor:
    """log E[σ(μ + sz)] for small values, by a sum around the peak of φ(z) σ(μ + sz), where z = s σ(−μ − sz).

    Points are z + w sinh t, w the width of the peak. To within 1e-5.
    """
    std = (var + 1e-6).sqrt()  # off 0, for the gradient
    with torch.no_grad():
        low, high = torch.zeros_like(std), std
        for _ in range(40):
            middle = (low + high) / 2
            beyond = std * torch.sigmoid(-mean - std * middle) > middle
            low, high = torch.where(beyond, middle, low), torch.where(beyond, high, middle)
        gate = torch.sigmoid(mean + std * low)
        width = torch.rsqrt(1 + std * std * gate * (1 - gate))
        t = torch.linspace(-6, 6, 61, dtype=mean.dtype, device=mean.device)[:, None]
        points = low + width * torch.sinh(t)
        weight = torch.log(0.2 * width * torch.cosh(t)) - 0.5 * points.square() - 0.5 * math.log(2 * math.pi)
    return torch.logsumexp(weight + F.logsigmoid(mean + std * points), 0)
