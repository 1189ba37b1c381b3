"""How wide should the posterior be? The loss of each example over a grid of widths and of settings of the output."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from varprop.calibration.folds import Folds, Piece
from varprop.errors import CalibrationError
from varprop.graph.fold import refold
from varprop.moments import Moments
from varprop.network.moment_net import MomentNet
from varprop.prediction.links import Categorical, ClassLink, Gaussian, Link
from varprop.prediction.targets import labelled, mean_of_each, refuse_shape
from varprop.prediction.temperature import minimize
from varprop.sharing import shared

Array = NDArray[np.float64]
Outputs = list[tuple[Moments, Tensor]]
"""The logits of each piece, with its target."""

COARSE = tuple(-3.0 + 0.5 * i for i in range(7))  # log₁₀ of the relative width
WIDEST = 1.0
FINE = (0.25, 0.125)  # steps around the best
OFFSETS = (-1.2, -0.8, -0.4, 0.0, 0.4)  # of the output's setting, from that of the plain network
SETTINGS = 65  # read off between, by cubic splines
# Standard deviations of Gaussian priors, without which a few examples that happen to be right call for any confidence:
TEMPERATURE_STD = 1.0  # of log T, around the network as it was trained,
SHIFT_STD = 0.3  # and of log T with variance around that without: variance says who is less confident, not how many;
NOISE_STD = 1.0  # of the noise of a regression, of which variance is to take over a part


class OutputParameter:
    """One number u that is fitted at the output, by the kind of link.

    For classes it is log T, by which logits are divided; for a regression whose noise is not given, the log of the
    noise's standard deviation. Other links have none: u = 0.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.is_temperature = isinstance(link, ClassLink)
        self.fitted = self.is_temperature or (isinstance(link, Gaussian) and link.noise_std is None)
        self.spread = TEMPERATURE_STD if self.is_temperature else math.inf
        self.shift = SHIFT_STD if self.is_temperature else NOISE_STD

    def loss(self, logits: Moments, target: Tensor, u: float | Tensor) -> Tensor:
        """Of each example."""
        scale = torch.as_tensor(u).exp().to(logits.mean)
        if self.is_temperature:
            logits = logits.divided_by(scale)
        elif self.fitted:
            logits = Moments(logits.mean, logits.var + scale.square())
        return mean_of_each(self.link.loss(logits, target), target)

    def accuracy(self, outputs: Outputs) -> float | None:
        """How many labels are right, where each has one."""
        if not isinstance(self.link, Categorical) or outputs[0][1].is_floating_point():
            return None
        right = [(logits.mean.argmax(-1) == y)[labelled(y)].float() for logits, y in outputs]
        return float(torch.cat(right).mean())

    @torch.no_grad()
    def table(self, outputs: Outputs, settings: Array) -> Array:
        """The loss [setting, example]; what is not finite counts as infinite."""
        rows = []
        for u in settings:
            losses = torch.cat([self.loss(logits, target, float(u)) for logits, target in outputs])
            rows.append(losses.double().nan_to_num(nan=math.inf).cpu().numpy())
        return np.stack(rows)

    def best(self, outputs: Outputs) -> float:
        """The most likely u of a network without variance."""
        if isinstance(self.link, ClassLink):
            return self._best_temperature(self.link, outputs)
        if not self.fitted:
            return 0.0
        for logits, target in outputs:
            refuse_shape(logits.mean, target)
        squares = torch.cat([(logits.mean - target).square().flatten() for logits, target in outputs])
        return 0.5 * math.log(max(float(squares.double().mean()), 1e-30))

    @staticmethod
    @torch.no_grad()
    def _best_temperature(link: ClassLink, outputs: Outputs) -> float:
        """The log T of least loss, with its prior and without the samples that a variance would need."""
        pairs = [(logits.mean.double(), target) for logits, target in outputs]
        examples = sum(len(target) for _, target in outputs)

        def loss(u: float) -> float:
            likely = torch.cat([link.log_likelihood(x / math.exp(u), y).flatten() for x, y in pairs]).mean()
            return 0.5 * (u / TEMPERATURE_STD) ** 2 / examples - float(likely)

        return minimize(loss)[1]


class PosteriorWidth:
    """A network whose weights' variances can be set, in units of the weights: width² = Σ var / Σ mean².

    So the search is the same whatever scale the posterior came with.
    """

    def __init__(self, net: MomentNet) -> None:
        self.net = net
        means = dict([*net.mean])
        size = sum(float(means[path].double().square().sum()) for path, _ in net.var)
        noise = sum(float(var.double().sum()) for _, var in net.var)
        self.shape = {path: var * (size or 1.0) / noise for path, var in net.var}

    def set(self, width: float) -> None:
        for path, var in self.shape.items():
            self.net.var[path].copy_(var * width**2)
        refold(self.net)


@dataclass(frozen=True)
class Widths:
    """``losses[w, u, i]`` of example i at each width, the first of which is 0, and each setting of the output."""

    widths: list[float]
    settings: Array
    losses: Array
    prior: Array  # the negative log-density of each width and setting
    plain: Array  # the losses of the network as it is, without variance and with nothing fitted
    accuracy: float | None  # and how often it is right

    def best(self, chosen: NDArray[np.bool_] | None = None, *, variance: bool = True) -> tuple[int, int]:
        """Where the loss of the chosen examples is least, with any variance or without."""
        rows = slice(None if variance else 1)
        losses = self.losses[rows] if chosen is None else self.losses[rows][..., chosen]
        total = losses.sum(-1) + self.prior[rows]
        width, setting = np.unravel_index(int(total.argmin()), total.shape)
        return int(width), int(setting)

    def cross_validated(self, folds: NDArray[np.int64], *, variance: bool = True) -> Array:
        """The loss of each example at what is best for the other folds."""
        found = np.empty(len(folds))
        for fold in np.unique(folds):
            width, setting = self.best(folds != fold, variance=variance)
            found[folds == fold] = self.losses[width, setting, folds == fold]
        return found

    def widest(self, slack: float) -> tuple[int, int]:
        """The largest width whose loss is within ``slack`` of the least, relatively, and its best setting."""
        totals = self.losses.sum(-1) + self.prior
        least = totals.min(-1)
        width = int(np.flatnonzero(least <= least.min() + slack * abs(least.min())).max())
        return width, int(totals[width].argmin())


def search(
    wide: PosteriorWidth, folds: Folds, output: OutputParameter, tick: Callable[[float], None], group: Any = None
) -> Widths:
    """Run the network once for each width."""

    def run(width: float) -> Outputs:
        wide.set(width)
        tick(1)
        return forward(wide.net, folds, group)

    plain = run(0.0)
    if not all(bool(logits.mean.isfinite().all()) for logits, _ in plain):
        raise CalibrationError("the outputs of the plain network are not finite for some held-out examples")
    grid = output.best(plain) + np.array(OFFSETS if output.fitted else (0.0,))
    settings = np.linspace(grid[0], grid[-1], SETTINGS) if output.fitted else grid
    seen = {-math.inf: output.table(plain, grid)}
    prior = _Prior(output, settings, _splined(grid, seen[-math.inf], settings))

    def look(log: float) -> None:
        if log not in seen:
            seen[log] = output.table(run(10**log), grid)

    def best() -> float:
        return min(seen, key=lambda log: float((seen[log].sum(-1) + prior(10**log, grid)).min()))

    for log in COARSE:
        look(log)
    while best() == max(seen) < WIDEST:
        look(max(seen) + 0.5)
    for step in FINE:
        if (middle := best()) > -math.inf:
            look(middle - step)
            look(middle + step)
    widths = [10**log for log in sorted(seen)]
    losses = np.stack([_splined(grid, seen[log], settings) for log in sorted(seen)])
    bare = output.table(plain, np.zeros(1)) if output.is_temperature else losses[0]
    bare = bare[bare.mean(-1).argmin()]
    priors = np.stack([prior(width, settings) for width in widths])
    return Widths(widths, settings, losses, priors, bare, output.accuracy(plain))


class _Prior:
    """−log p(u) of settings u up to a constant: with variance, around what is best without."""

    def __init__(self, output: OutputParameter, settings: Array, losses: Array) -> None:
        self.spread, self.shift = output.spread, output.shift
        self.alone = float(settings[(losses.sum(-1) + self(0.0, settings)).argmin()])

    def __call__(self, width: float, u: Array) -> Array:
        if not width:
            return 0.5 * (u / self.spread) ** 2
        return 0.5 * (self.alone / self.spread) ** 2 + 0.5 * ((u - self.alone) / self.shift) ** 2


@torch.no_grad()
def forward(net: MomentNet, folds: Folds, group: Any = None) -> Outputs:
    def one(_: int, piece: Piece) -> dict[str, Tensor]:
        batch = piece.batch.to(net.device)
        return net(*batch.args, **batch.kwargs)._asdict()

    found = shared(folds.pieces, one, group)
    logits = [Moments(each["mean"].to(net.device), each["var"].to(net.device)) for each in found]
    return [(each, piece.batch.target.to(net.device)) for each, piece in zip(logits, folds.pieces, strict=True)]


def _splined(grid: Array, values: Array, at: Array) -> Array:
    from scipy.interpolate import CubicSpline  # here, because it takes long to import

    if len(grid) == 1:
        return values
    finite = np.isfinite(values).all(0)
    result = np.full((len(at), values.shape[1]), np.inf)
    result[:, finite] = CubicSpline(grid, values[:, finite])(at)
    return result
