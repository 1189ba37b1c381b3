"""The paper's calibration: a fixed number of epochs of Adam on log α."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from varprop.batch import Batch
from varprop.calibration.procedure import HeldOut, Request
from varprop.calibration.stages import Prepared, StagedNet
from varprop.errors import CalibrationError
from varprop.graph.captured import outside
from varprop.graph.registry import scale_path
from varprop.network.moment_net import MomentNet
from varprop.prediction.links import ClassLink
from varprop.prediction.targets import mean_of_each

FEW = 30  # held-out examples for each scale, below which the scales fit noise
SHARPER = 0.8  # the temperature that is tried, to see whether predictions are underconfident
CLEARLY = 3.0  # standard errors of its gain that the gain must exceed for a warning,
RELEVANT = 0.01  # and the share of the loss
STILL_MOVING = 0.5  # of Adam's full step, which it takes while all gradients agree
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FixedEpochs:
    """Adam on log α with everything else frozen, for ``epochs`` rounds: the paper's procedure, for reproduction.

    Gradients are accumulated to ``batch_size`` examples, at most ``micro_batch`` of which go through the network
    together. The width of the posterior and the temperature stay as they are.
    """

    epochs: int = 10
    lr: float = 0.03
    batch_size: int = 256
    micro_batch: int | None = None

    def __post_init__(self) -> None:
        numbers = {name: value for name, value in vars(self).items() if value is not None}
        if wrong := {name: value for name, value in numbers.items() if not 0 < value < math.inf}:
            raise CalibrationError(f"{', '.join(f'{n}={v}' for n, v in wrong.items())}: it must be positive")

    def fit(self, net: MomentNet, held_out: HeldOut, request: Request) -> MomentNet:
        if not request.patterns:
            return net
        fit = _Fit(net, request, self.lr)
        for epoch in range(self.epochs):
            desc = f"calibrate {epoch + 1}/{self.epochs}"
            with tqdm(desc=desc, unit=" examples", disable=request.silent, leave=False) as bar:
                fit.epoch(held_out, self.batch_size, self.micro_batch or self.batch_size, bar)
        return fit.finish()


class _Fit:
    """Where a calibration stands."""

    def __init__(self, net: MomentNet, request: Request, lr: float) -> None:
        self.net, self.request, self.link, self.lr = net, request, request.link, lr
        self.trained: dict[str, nn.Parameter] = {}
        self.optimizer = torch.optim.Adam([{"params": []}], lr=lr)
        self.staged = StagedNet(net)
        self.room = request.cache
        self.kept: list[Prepared] | None = []
        self.losses: list[float] = []  # per example, one for each epoch
        self.steps = 0
        self.warned = False  # that these scales are not what is missing: then more steps are no remedy
        self.pace = 0.0  # how far the fastest log α went in the last epoch, against Adam's full steps

    def epoch(self, batches: Iterable[Batch], batch_size: int, micro_batch: int, bar: Any) -> None:
        total, count, pending = 0.0, 0, 0
        sharper: list[Tensor] = []
        started, steps = self._logs(), self.steps
        kept = self.kept if self.losses else None
        for prepared in kept or self._prepare(batches, batch_size, micro_batch):
            logits, target = prepared.finish().divided_by(self.net.temperature), prepared.target
            loss = mean_of_each(self.link.loss(logits, target), target)
            if not self.losses and isinstance(self.link, ClassLink):
                with torch.no_grad():
                    sharp = self.link.loss(logits.divided_by(SHARPER), target)
                    sharper.append(loss - mean_of_each(sharp, target))
            summed = loss.sum()
            if not math.isfinite(value := float(summed.detach())):
                finite = bool(logits.mean.isfinite().all()) and self.steps
                cause = "try a smaller lr" if finite else "the outputs of the network are not finite for some examples"
                raise CalibrationError(f"the loss is {value} in epoch {len(self.losses) + 1}: {cause}")
            summed.backward()
            total, count, pending = total + value, count + len(target), pending + len(target)
            if pending >= batch_size:
                self._step(pending)
                pending = 0
            bar.update(len(target))
            bar.set_postfix(nll=f"{total / count:.4f}", refresh=False)
        if pending:
            self._step(pending)
        if not self.losses:
            self.warned = _warn(torch.cat(sharper) if sharper else None, total / count, count, len(self.trained))
        self.losses.append(total / count)
        moved = max((abs(log - started.get(name, 0.0)) for name, log in self._logs().items()), default=0.0)
        self.pace = moved / (self.lr * (self.steps - steps))
        _log.info("calibrate, epoch %d: NLL %.5f on %d examples", len(self.losses), total / count, count)

    def _prepare(self, batches: Iterable[Batch], batch_size: int, micro_batch: int) -> Iterator[Prepared]:
        """The batches in pieces of at most ``micro_batch``, none of which reaches beyond a step of ``batch_size``."""
        filled = 0
        for batch in batches:
            start = 0
            while start < len(batch):
                piece = batch.rows(start, min(start + micro_batch, start + batch_size - filled))
                start, filled = start + len(piece), (filled + len(piece)) % batch_size
                item = self.staged.prepare(piece, self._train)
                self.room -= item.nbytes
                if self.room < 0:  # kept for the next epochs is everything or nothing
                    self.kept = None
                elif self.kept is not None:
                    self.kept.append(item)
                yield item

    def _train(self) -> list[str]:
        """The scales selected; those of a graph that is new join the ones that are trained."""
        names = self.request.selected(self.net.scales)
        fresh = {n: self.net.scale[scale_path(n)].requires_grad_() for n in names if n not in self.trained}
        self.trained |= fresh  # type: ignore[arg-type]
        if fresh:
            self.optimizer.add_param_group({"params": list(fresh.values())})
        return names

    def _step(self, examples: int) -> None:
        for parameter in self.trained.values():
            if parameter.grad is not None:
                parameter.grad /= examples
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1

    def _logs(self) -> dict[str, float]:
        return {name: float(parameter.detach()) for name, parameter in self.trained.items()}

    def finish(self) -> MomentNet:
        for parameter in self.trained.values():
            parameter.requires_grad_(False).grad = None
        if self.losses and self.losses[-1] > self.losses[0]:
            warnings.warn(
                f"calibration raised the NLL of the held-out data from {self.losses[0]:.4f} to {self.losses[-1]:.4f}: "
                "try a smaller lr",
                stacklevel=outside(),
            )
        elif self.pace > STILL_MOVING and not self.warned:
            warnings.warn(
                f"calibration ended after {self.steps} steps while scales were still moving: raise epochs or lr, "
                "or lower batch_size",
                stacklevel=outside(),
            )
        return self.net


def _warn(gains: Tensor | None, loss: float, count: int, scales: int) -> bool:
    """Whether there was reason to warn, of one thing: remedies for another may contradict it.

    ``gains``: by how much sharper predictions would lower the loss of each example.
    """
    gain, error = (0.0, 0.0) if gains is None else (float(gains.mean()), float(gains.double().std()) / count**0.5)
    if gain > max(CLEARLY * error, RELEVANT * loss):
        warnings.warn(
            f"these predictions are underconfident: logits divided by {SHARPER} have an NLL that is {gain:.3f} lower. "
            "A variance can only make them softer, so scales may bend the means of layers instead; better fit a "
            "temperature to the network as it is: TemperatureScaled(Propagated(net)).fit(batches)",
            stacklevel=outside(),
        )
    elif count < FEW * scales:
        warnings.warn(
            f"{count} held-out examples for {scales} scales are few: the fit may follow noise. "
            "Use more data, or scales=OUTPUT_ONLY",
            stacklevel=outside(),
        )
    else:
        return False
    return True
