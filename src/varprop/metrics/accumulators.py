"""The metrics as ``torchmetrics.Metric``: update with batches on any number of processes, then compute once.

``compute`` gives what the plain function gives on all examples together, however they were split into batches and
processes. A batch may be empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from varprop.errors import MetricError
from varprop.metrics import calibration, inputs, proper, risk


class _Accumulator(Metric):
    """States in the widest float of the device, whatever precision the model around them is cast to."""

    is_differentiable = False
    full_state_update = False
    higher_is_better = False
    plot_lower_bound: float | None = 0.0
    plot_upper_bound: float | None = 1.0

    @property
    def dtype(self) -> torch.dtype:
        # torchmetrics sends an empty state of this dtype from a process without data: it must be that of the others.
        return inputs.wide(self.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = ()) -> nn.Module:
        # model.to(torch.bfloat16) reaches here too, and would round what was summed so far: follow the device only.
        def move(x: Tensor) -> Tensor:
            device = fn(torch.empty(0, device=x.device)).device
            return x.to(device, inputs.wide(device)) if x.is_floating_point() else x.to(device)

        return super()._apply(move, exclude_state)


class _Examples(_Accumulator):
    """Keeps every example, 16 bytes each, since the metric needs all of them sorted."""

    confidence: Any  # a list of batches; one tensor once torchmetrics has gathered the processes
    correctness: Any
    _checked = staticmethod(inputs.scored)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_state("confidence", default=[], dist_reduce_fx="cat")
        self.add_state("correctness", default=[], dist_reduce_fx="cat")

    def update(self, confidence: Tensor, correctness: Tensor) -> None:
        confidence, correctness = self._checked(confidence, correctness)
        self.confidence.append(confidence.to(correctness.dtype))
        self.correctness.append(correctness)

    def _all(self) -> tuple[Tensor, Tensor]:
        return _joined(self.confidence), _joined(self.correctness)


def _joined(state: list[Tensor] | Tensor) -> Tensor:
    if isinstance(state, Tensor):
        return state
    return torch.cat(state) if state else torch.empty(0)


class AURC(_Examples):
    """Area under the risk-coverage curve: see ``aurc``."""

    def compute(self) -> Tensor:
        return risk.aurc(*self._all())


class CoverageAtRisk(_Examples):
    """Largest coverage whose risk is at most ``risk``: see ``coverage_at_risk``."""

    higher_is_better = True

    def __init__(self, risk: float, **options: Any) -> None:
        super().__init__(**options)
        self.risk = inputs.open_fraction("risk", risk)

    def compute(self) -> Tensor:
        return risk.coverage_at_risk(*self._all(), self.risk)


class ACE(_Examples):
    """Adaptive calibration error, over bins of equal mass: see ``ace``."""

    _checked = staticmethod(inputs.scored_in_unit_interval)

    def __init__(self, bins: int = 15, **options: Any) -> None:
        super().__init__(**options)
        self.bins = inputs.whole("bins", bins, least=1)

    def compute(self) -> Tensor:
        return calibration.ace(*self._all(), self.bins)


class _Sum(_Accumulator):
    """A running sum and a count.

    The sum's name holds the metric's class and settings. A ``MetricCollection`` lets metrics share states that have
    equal names and, after the first batch, equal values: two metrics that only happen to agree on that batch, such as
    reliabilities at different costs before the first error, would be merged for good.
    """

    count: Tensor

    def __init__(self, *settings: float, shape: tuple[int, ...] = (), **options: Any) -> None:
        super().__init__(**options)
        self._sum = "_".join([type(self).__name__.lower(), *map(repr, settings)])
        self.add_state(self._sum, default=torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", default=torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def _add(self, total: Tensor, examples: int) -> None:
        setattr(self, self._sum, getattr(self, self._sum) + total.to(self.device))
        self.count = self.count + examples

    def _total(self) -> Tensor:
        if not self.count:
            raise MetricError(f"{type(self).__name__} has seen no examples: call update before compute")
        return getattr(self, self._sum)

    def compute(self) -> Tensor:
        return self._total() / self.count


class Accuracy(_Sum):
    """Mean correctness: see ``accuracy``. Takes the confidence as well, so that one collection can feed all."""

    higher_is_better = True

    def update(self, confidence: Tensor, correctness: Tensor) -> None:
        _, correctness = inputs.scored(confidence, correctness)
        self._add(correctness.sum(), len(correctness))


class EffectiveReliability(_Sum):
    """Φ_c at a threshold that was chosen on other data: see ``effective_reliability`` and ``best_threshold``."""

    higher_is_better = True
    plot_lower_bound = None

    def __init__(self, cost: float, threshold: float, **options: Any) -> None:
        cost, threshold = inputs.non_negative("cost", cost), inputs.number("threshold", threshold)
        super().__init__(cost, threshold, **options)
        self.cost, self.threshold = cost, threshold

    def update(self, confidence: Tensor, correctness: Tensor) -> None:
        each = risk.reliability_of_each(confidence, correctness, self.cost, self.threshold)
        self._add(each.sum(), len(each))


class ECE(_Sum):
    """Expected calibration error, over bins of equal width: see ``ece``."""

    def __init__(self, bins: int = 15, **options: Any) -> None:
        bins = inputs.whole("bins", bins, least=1)
        super().__init__(bins, shape=(bins,), **options)
        self.bins = bins

    def update(self, confidence: Tensor, correctness: Tensor) -> None:
        confidence, correctness = inputs.scored_in_unit_interval(confidence, correctness)
        self._add(calibration.bin_gaps(confidence, correctness, self.bins), len(correctness))

    def compute(self) -> Tensor:
        return self._total().abs().sum() / self.count


class _MeanScore(_Sum):
    """The mean of a score of probabilities."""

    plot_upper_bound: float | None = None
    _of_each: Callable[[Tensor, Tensor], Tensor]

    def update(self, probs: Tensor, target: Tensor) -> None:
        each = self._of_each(probs, target)
        self._add(each.sum(), len(each))


class Brier(_MeanScore):
    """Mean over examples of the squared error summed over classes: see ``brier``."""

    plot_upper_bound = 2.0
    _of_each = staticmethod(proper.brier_of_each)


class NLL(_MeanScore):
    """Negative log-likelihood: see ``nll``."""

    _of_each = staticmethod(proper.nll_of_each)


class BCE(_MeanScore):
    """Binary cross-entropy, summed over answers: see ``bce``."""

    _of_each = staticmethod(proper.bce_of_each)


class _MeanOfOutputs(_Sum):
    """The mean of a score of Gaussians, over outputs of any shape."""

    plot_lower_bound: float | None = None
    plot_upper_bound: float | None = None
    _of_each: Callable[[Tensor, Tensor, Tensor], Tensor]

    def update(self, mean: Tensor, var: Tensor, target: Tensor) -> None:
        each = self._of_each(mean, var, target)
        self._add(each.sum(), len(each))


class GaussianNLL(_MeanOfOutputs):
    """Negative log-likelihood of a regression: see ``gaussian_nll``."""

    _of_each = staticmethod(proper.gaussian_nll_of_each)


class CRPS(_MeanOfOutputs):
    """Continuous ranked probability score: see ``crps``."""

    plot_lower_bound = 0.0
    _of_each = staticmethod(proper.crps_of_each)
