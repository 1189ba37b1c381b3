"""Methods that add uncertainty to an ordinary checkpoint: one network, and a row for each method.

Every method is fitted on the held-out data alone, with the same care: Monte Carlo and Laplace approximations have the
width of their posterior chosen there, and all have a temperature where they have logits.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.augment import UNCHANGED, apply
from experiments.cuda_graph import Gradients
from experiments.data.examples import Examples, PreparedBatches, map_inputs
from experiments.pipeline import Pipeline
from experiments.products import products
from experiments.row_files import add_rows, packed, read_rows
from experiments.side_by_side import as_call
from experiments.training import loss_of
from varprop import links
from varprop.batch import read as read_batches
from varprop.calibration.calibrate import calibrate
from varprop.calibration.fixed_epochs import FixedEpochs
from varprop.evaluation.evaluate import evaluate, evaluate_answers
from varprop.evaluation.evaluated import Evaluation
from varprop.graph.output import run
from varprop.network.moment_net import MomentNet, propagate
from varprop.posterior import Posterior
from varprop.posterior.swag import SWAG
from varprop.prediction.monte_carlo import MonteCarlo
from varprop.prediction.prediction import Prediction
from varprop.prediction.predictors import MeanNetwork, Propagated
from varprop.prediction.temperature import TemperatureScaled
from varprop.rules import CVP, FACTORED, RuleSet

WIDTHS = tuple(10 ** (-2 + i / 4) for i in range(9))  # relative: the root of Σ var / Σ mean²
SEARCH_SAMPLES, FINAL_SAMPLES = 16, 64  # Monte Carlo samples, in the search for a width and in the end
BATCH, SAMPLED_BATCH = 250, 1000  # Monte Carlo draws all its networks for every batch
HELD_OUT = (50, 100, 300, 1000)
ENSEMBLE_SIZE = 4
SWAG_EPOCHS, SWAG_COLLECTED, SWAG_RATES, SWAG_MOMENTUM = 4, 20, (0.003, 0.03), 0.9

Found = tuple[Evaluation, dict[str, Any]]
"""On the test examples, and what else a row says."""


@dataclass
class Study:
    """One trained network of several, and the rows about it."""

    pipeline: Pipeline
    seed: int
    out: Path
    only: Sequence[str] | None = None  # of the methods

    def run(self) -> None:
        """In the order of importance; what is in the file already is not done again."""
        wanted = {name: method for name, method in methods().items() if self.only is None or name in self.only}
        missing = [name for name in wanted if name not in self._done()]
        if not missing:
            return
        self.model, self.adam = self.pipeline.trained(self.seed)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self.adam.mean[name])
        splits = self.pipeline.splits(self.seed)
        self.held_out, self.test = (self._prepared(part, BATCH) for part in (splits.held_out, splits.test))
        self.flat = Posterior.isotropic(self.model)
        for name in missing:
            started = time.monotonic()
            found, notes = wanted[name](self)
            row = {"row": self.pipeline.experiment.name, "seed": self.seed, "method": name, **notes}
            row |= {"metrics": dict(found.metrics), "seconds": time.monotonic() - started}
            row |= products(self.pipeline.device)
            add_rows(self.out, [row | packed(found)])

    def _done(self) -> set[str]:
        return {row["method"] for row in read_rows(self.out) if row["seed"] == self.seed}

    def _prepared(self, examples: Examples, size: int) -> PreparedBatches:
        device = self.pipeline.device
        return PreparedBatches(examples.to(device), self.pipeline.experiment.prepare, size, device)

    def _some(self, count: int | None) -> list[tuple[Any, Tensor]]:
        """All that was held out, or so many of them: other ones for every seed."""
        if count is None:
            return list(self.held_out)
        examples = self.pipeline.splits(self.seed).held_out
        order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(self.seed))[:count]
        return list(self._prepared(examples.take(order), count))

    def _score(self, predictor: Any) -> Evaluation:
        return evaluate(predictor, self.test, progress=False)

    def _tempered(self, count: int | None = None) -> Found:
        fitted = TemperatureScaled(MeanNetwork(self.model)).fit(self._some(count))
        return self._score(fitted), {"temperature": fitted.temperature}

    @functools.cached_property
    def fitted(self) -> MomentNet:
        """With variances from Adam, on all that was held out."""
        return self._calibrated(self.adam)

    def _calibrated(
        self, posterior: Posterior, count: int | None = None, rules: RuleSet = CVP, **options: Any
    ) -> MomentNet:
        return calibrate(propagate(self.model, posterior, rules), self._some(count), progress=False, **options)

    def _described(self, net: MomentNet) -> Found:
        found = vars(net.calibration) if net.calibration else {}
        return self._score(Propagated(net)), {**found, "temperature": net.temperature, "scales": net.scales}

    def _propagated(self, *args: Any, **options: Any) -> Found:
        return self._described(self._calibrated(*args, **options))

    def _rounded(self) -> Found:
        """Fitted in float32, run in bfloat16."""
        predictor = Propagated(copy.deepcopy(self.fitted).to(torch.bfloat16))
        inputs = ((map_inputs(x, lambda t: t.bfloat16() if t.is_floating_point() else t), y) for x, y in self.test)
        return evaluate(predictor, inputs, progress=False), {}

    @property
    def _last_layer(self) -> Posterior:
        *_, last = self.flat
        return self.flat.restrict(last.rpartition(".")[0])

    def _swag(self) -> Found:
        """With the rate of SGD, of two, that is the better on what was held out."""
        tuned = {rate: self._tuned(swag_posterior(self.pipeline, self.model, self.seed, rate)) for rate in SWAG_RATES}
        rate = min(tuned, key=lambda rate: tuned[rate][0])
        _, width, posterior = tuned[rate]
        return self._sample(posterior, FINAL_SAMPLES, self.test), {"width": width, "rate": rate}

    def _sampled(self, posterior: Posterior) -> Found:
        _, width, posterior = self._tuned(posterior)
        return self._sample(posterior, FINAL_SAMPLES, self.test), {"width": width}

    def _tuned(self, posterior: Posterior) -> tuple[float, float, Posterior]:
        """Of the width with the least held-out loss: that loss, the width, and the posterior."""
        size = sum(float(pair.mean.square().sum()) for pair in posterior.values())
        noise = sum(float(pair.var.sum()) for pair in posterior.values())
        wide = {width: posterior.scaled(width**2 * size / noise) for width in WIDTHS}
        losses = {
            width: self._sample(each, SEARCH_SAMPLES, self.held_out).metrics["nll"] for width, each in wide.items()
        }
        best = min(losses, key=lambda width: losses[width])
        return losses[best], best, wide[best]

    def _sample(self, posterior: Posterior, samples: int, data: PreparedBatches) -> Evaluation:
        predictor = MonteCarlo(self.model, posterior, samples, seed=self.seed)
        return evaluate(predictor, replace(data, size=SAMPLED_BATCH), progress=False)

    def _ensemble(self) -> Found:
        """Of this network and the next ones, with one temperature for all."""
        seeds = self.pipeline.seeds
        start = list(seeds).index(self.seed)
        team = [seeds[(start + i) % len(seeds)] for i in range(ENSEMBLE_SIZE)]
        models = [_filled(*self.pipeline.trained(seed)) for seed in team]
        held_out, test = (list(self._logits(models, data)) for data in (self.held_out, self.test))

        def answer(temperature: float, data: list[tuple[list[Tensor], Tensor]]) -> list[tuple[Prediction, Tensor]]:
            return [(links.Softmax().average([x / temperature for x in logits]), y) for logits, y in data]

        grid = [10 ** (-0.5 + i / 20) for i in range(21)]
        best = min(grid, key=lambda t: evaluate_answers(answer(t, held_out), progress=False).metrics["nll"])
        return evaluate_answers(answer(best, test), progress=False), {"temperature": best}

    @torch.no_grad()
    def _logits(self, models: Sequence[nn.Module], data: PreparedBatches) -> Iterator[tuple[list[Tensor], Tensor]]:
        predictors = [MeanNetwork(model) for model in models]
        for batch in read_batches(data):
            yield [each.logits(*batch.args, **batch.kwargs).mean for each in predictors], batch.target


def methods() -> dict[str, Callable[[Study], Found]]:
    """By name, in the order of importance."""
    by_count: dict[str, Callable[[Study], Found]] = {}
    for count in HELD_OUT:
        by_count[f"temperature@{count}"] = functools.partial(Study._tempered, count=count)
        by_count[f"cvp-isotropic@{count}"] = functools.partial(_isotropic, count=count)
    return {
        "mean": lambda study: (study._score(MeanNetwork(study.model)), {}),
        "temperature": Study._tempered,
        "cvp-adam": lambda study: study._described(study.fitted),
        "cvp-adam-bfloat16": Study._rounded,
        "cvp-isotropic": _isotropic,
        f"ensemble-{ENSEMBLE_SIZE}": Study._ensemble,
        **by_count,
        "mc-adam": lambda study: study._sampled(study.adam),
        "factored-adam": lambda study: study._propagated(study.adam, rules=FACTORED),
        "last-layer": lambda study: study._propagated(study._last_layer),
        "laplace": lambda study: study._sampled(Posterior.from_fisher(study.model, study.held_out)),
        "swag": Study._swag,
        "mc-isotropic": lambda study: study._sampled(study.flat),
        "cvp-adam-paper": lambda study: study._propagated(study.adam, procedure=FixedEpochs()),
    }


def _isotropic(study: Study, count: int | None = None) -> Found:
    return study._propagated(study.flat, count)


def _filled(model: nn.Module, posterior: Posterior) -> nn.Module:
    model.load_state_dict(posterior.mean, strict=False)
    return model


def swag_posterior(pipeline: Pipeline, model: nn.Module, seed: int, rate: float) -> Posterior:
    """Mean and variance of the weights along some more epochs of SGD at a constant rate; the model stays as it is."""
    device, recipe, experiment = pipeline.device, pipeline.recipe, pipeline.experiment
    examples = pipeline.splits(seed).train.to(device)
    model, swag = copy.deepcopy(model), SWAG()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=SWAG_MOMENTUM)

    def mean_loss(args: Any, kwargs: Any, target: Tensor) -> Tensor:
        return loss_of(experiment.link, run(model, {}, args, kwargs, None), target).mean()

    gradients = Gradients(mean_loss, [*model.parameters()])
    generator, size = torch.Generator().manual_seed(seed), min(recipe.batch, len(examples))
    every = max(1, len(examples) * SWAG_EPOCHS // (size * SWAG_COLLECTED))
    for step in range(every * SWAG_COLLECTED):
        rows = torch.randint(len(examples), (size,), generator=generator).to(device)
        draws = {name: x.to(device) for name, x in recipe.augment.draw(size, generator).items()}
        raw = examples.read(rows)
        if isinstance(raw, Tensor) and recipe.augment != UNCHANGED:
            raw = apply(raw, draws)
        optimizer.zero_grad()
        gradients(*as_call(experiment.prepare(raw)), examples.labels[rows])
        optimizer.step()
        if (step + 1) % every == 0:
            swag.update_parameters(model)
    return Posterior.from_swag(model, swag)
