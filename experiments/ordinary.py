"""Ordinary networks: what a posterior and a calibration add to a checkpoint, beside what else could be done with it.

Every method is fitted on the held-out data alone, with the same care: Monte Carlo and Laplace approximations have the
width of their posterior chosen there, and all have a temperature where they have logits. Rows are lines of JSON;
``python -m experiments.ordinary FILE`` prints them as a table; with a second name, that of a picture, what sets methods
apart from temperature scaling is drawn there against the number of held-out examples.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.continued import RATES, collect
from experiments.data.labelled import Labelled
from experiments.loading import PreparedBatches
from experiments.pipeline import Pipeline
from experiments.side_by_side import each_of
from varprop import links
from varprop.batch import read as read_batches
from varprop.calibration.calibrate import calibrate
from varprop.calibration.fixed_epochs import FixedEpochs
from varprop.evaluation.evaluate import evaluate, evaluate_answers
from varprop.network.moment_net import MomentNet, propagate
from varprop.posterior import Posterior
from varprop.prediction.monte_carlo import MonteCarlo
from varprop.prediction.prediction import Prediction
from varprop.prediction.predictors import MeanNetwork, Propagated
from varprop.prediction.temperature import TemperatureScaled
from varprop.rules import CVP, FACTORED, RuleSet

WIDTHS = tuple(10 ** (-2 + i / 4) for i in range(9))  # relative: the root of Σ var / Σ mean²
TRIED, USED = 16, 64  # Monte Carlo samples, in the search for a width and in the end
SAMPLED = 1000  # examples in a batch of Monte Carlo, which draws all its networks for every batch
HELD_OUT = (50, 100, 300, 1000)
TEAM = 4

Found = tuple[Mapping[str, float], dict[str, Any]]
"""Metrics, and what else a row says."""


@dataclass
class Study:
    """One trained network of several, and the rows about it."""

    pipeline: Pipeline
    seed: int
    seeds: Sequence[int]
    out: Path
    until: float = math.inf  # by ``time.monotonic()``: what has not begun by then is left out
    only: Sequence[str] | None = None  # of the methods
    batch: int = 250

    def run(self) -> None:
        """In the order of importance; what is in the file already is not done again."""
        self.model, self.adam = self.pipeline.trained(self.seed)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self.adam.mean[name])
        splits = self.pipeline.splits(self.seed)
        self.held_out, self.test = (self._prepared(part, self.batch) for part in (splits.held_out, splits.test))
        self.flat = Posterior.isotropic(self.model)
        for name, method in self._methods():
            asked = self.only is None or name in self.only
            if asked and name not in self._done() and time.monotonic() < self.until:
                started = time.monotonic()
                metrics, notes = method()
                row = {"row": self.pipeline.experiment.name, "seed": self.seed, "method": name, **notes}
                row |= {"metrics": dict(metrics), "seconds": time.monotonic() - started}
                with self.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")

    def _done(self) -> set[str]:
        rows = read(self.out) if self.out.exists() else []
        return {row["method"] for row in rows if row["seed"] == self.seed}

    def _methods(self) -> Iterator[tuple[str, Callable[[], Found]]]:
        yield "mean", lambda: (self._score(MeanNetwork(self.model)), {})
        yield "temperature", self._tempered
        yield "cvp-adam", lambda: self._described(self.fitted)
        yield "cvp-adam-bfloat16", self._rounded
        yield "cvp-isotropic", lambda: self._propagated(self.flat)
        yield f"ensemble-{TEAM}", self._ensemble
        for count in HELD_OUT:
            yield f"temperature@{count}", functools.partial(self._tempered, count)
            yield f"cvp-isotropic@{count}", functools.partial(self._propagated, self.flat, count)
        yield "mc-adam", lambda: self._sampled(self.adam)
        yield "factored-adam", lambda: self._propagated(self.adam, rules=FACTORED)
        yield "last-layer", lambda: self._propagated(self._last_layer)
        yield "laplace", lambda: self._sampled(Posterior.from_fisher(self.model, self.held_out))
        yield "swag", self._swag
        yield "mc-isotropic", lambda: self._sampled(self.flat)
        yield "cvp-adam-paper", lambda: self._propagated(self.adam, procedure=FixedEpochs())

    def _prepared(self, examples: Labelled, size: int) -> PreparedBatches:
        device = self.pipeline.device
        return PreparedBatches(examples.to(device), self.pipeline.experiment.prepare, size, device)

    def _some(self, count: int | None) -> list[tuple[Any, Tensor]]:
        """All that was held out, or so many of them: other ones for every seed."""
        if count is None:
            return list(self.held_out)
        examples = self.pipeline.splits(self.seed).held_out
        order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(self.seed))[:count]
        return list(self._prepared(examples.take(order), count))

    def _score(self, predictor: Any) -> Mapping[str, float]:
        return evaluate(predictor, self.test, progress=False).metrics

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
        inputs = ((each_of(x, lambda t: t.bfloat16() if t.is_floating_point() else t), y) for x, y in self.test)
        return evaluate(predictor, inputs, progress=False).metrics, {}

    @property
    def _last_layer(self) -> Posterior:
        *_, last = self.flat
        return self.flat.restrict(last.rpartition(".")[0])

    def _swag(self) -> Found:
        """With the rate of SGD, of two, that is the better on what was held out."""
        tuned = {rate: self._tuned(collect(self.pipeline, self.model, self.seed, rate)) for rate in RATES}
        rate = min(tuned, key=lambda rate: tuned[rate][0])
        _, width, posterior = tuned[rate]
        return self._sample(posterior, USED, self.test), {"width": width, "rate": rate}

    def _sampled(self, posterior: Posterior) -> Found:
        _, width, posterior = self._tuned(posterior)
        return self._sample(posterior, USED, self.test), {"width": width}

    def _tuned(self, posterior: Posterior) -> tuple[float, float, Posterior]:
        """Of the width with the least held-out loss: that loss, the width, and the posterior."""
        size = sum(float(pair.mean.square().sum()) for pair in posterior.values())
        noise = sum(float(pair.var.sum()) for pair in posterior.values())
        wide = {width: posterior.scaled(width**2 * size / noise) for width in WIDTHS}
        losses = {width: self._sample(each, TRIED, self.held_out)["nll"] for width, each in wide.items()}
        best = min(losses, key=lambda width: losses[width])
        return losses[best], best, wide[best]

    def _sample(self, posterior: Posterior, samples: int, data: PreparedBatches) -> Mapping[str, float]:
        predictor = MonteCarlo(self.model, posterior, samples, seed=self.seed)
        return evaluate(predictor, replace(data, size=SAMPLED), progress=False).metrics

    def _ensemble(self) -> Found:
        """Of this network and the next ones, with one temperature for all."""
        start = list(self.seeds).index(self.seed)
        team = [self.seeds[(start + i) % len(self.seeds)] for i in range(TEAM)]
        models = [_filled(*self.pipeline.trained(seed)) for seed in team]
        held_out, test = (list(self._logits(models, data)) for data in (self.held_out, self.test))

        def answer(temperature: float, data: list[tuple[list[Tensor], Tensor]]) -> list[tuple[Prediction, Tensor]]:
            return [(links.Softmax().average([x / temperature for x in logits]), y) for logits, y in data]

        grid = [10 ** (-0.5 + i / 20) for i in range(21)]
        best = min(grid, key=lambda t: evaluate_answers(answer(t, held_out), progress=False).metrics["nll"])
        return evaluate_answers(answer(best, test), progress=False).metrics, {"temperature": best}

    @torch.no_grad()
    def _logits(self, models: Sequence[nn.Module], data: PreparedBatches) -> Iterator[tuple[list[Tensor], Tensor]]:
        predictors = [MeanNetwork(model) for model in models]
        for batch in read_batches(data):
            yield [each.logits(*batch.args, **batch.kwargs).mean for each in predictors], batch.target


def _filled(model: nn.Module, posterior: Posterior) -> nn.Module:
    model.load_state_dict(posterior.mean, strict=False)
    return model


def compare_paired(rows: Sequence[dict[str, Any]], reference: str = "temperature") -> dict[str, dict[str, Any]]:
    """For each method and metric: the mean over seeds, and the mean and standard error of what sets it apart."""
    by_method: dict[str, dict[int, dict[str, float]]] = {}
    for row in rows:
        by_method.setdefault(row["method"], {})[row["seed"]] = row["metrics"]
    found: dict[str, dict[str, Any]] = {}
    for method, seeds in by_method.items():
        name, at, count = method.partition("@")
        beside = by_method.get(f"{reference}{at}{count}", {})
        common = sorted(set(seeds) & set(beside))
        for metric in next(iter(seeds.values())):
            values = torch.tensor([seeds[s][metric] for s in seeds], dtype=torch.float64)
            entry = {"mean": float(values.mean()), "seeds": len(seeds)}
            if name != reference and len(common) > 1:
                gaps = torch.tensor([seeds[s][metric] - beside[s][metric] for s in common], dtype=torch.float64)
                entry |= {"difference": float(gaps.mean()), "error": float(gaps.std()) / math.sqrt(len(gaps))}
            found.setdefault(method, {})[metric] = entry
    return found


COLUMNS = {
    "accuracy": ("accuracy, %", 100, 2),
    "aurc": ("AURC × 100", 100, 2),
    "nll": ("NLL", 1, 4),
    "brier": ("Brier", 1, 4),
    "ece": ("ECE, %", 100, 2),
    "c@1": ("C@1 %, %", 100, 1),
}
LARGER = ("accuracy", "c@1")  # is better
TITLES = {
    "mean": "mean network",
    "temperature": "temperature scaling",
    "cvp-adam": "CVP, variances from Adam",
    "cvp-adam-bfloat16": "the same in bfloat16",
    "cvp-isotropic": "CVP, one variance for all weights",
    "factored-adam": "FACTORED, variances from Adam",
    f"ensemble-{TEAM}": f"{TEAM} networks",
    "mc-adam": f"{USED} samples, variances from Adam",
    "mc-isotropic": f"{USED} samples, one variance for all",
    "laplace": f"{USED} samples, diagonal Laplace",
    "swag": f"{USED} samples, diagonal SWAG",
    "last-layer": "CVP, last layer alone",
    "cvp-adam-paper": "CVP, the paper's calibration",
}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: what each method has, and beside it what sets it apart from temperature scaling, paired by seed.

    In bold what is better by more than two standard errors, in italics what is worse by more than one.
    """
    found = compare_paired(rows)
    lines = [["", "seeds", *(title for title, _, _ in COLUMNS.values())], ["---", *["---:"] * (1 + len(COLUMNS))]]
    for method in sorted(found, key=_place):
        name, at, count = method.partition("@")
        line = [TITLES.get(name, name) + (f", {count} held-out" if at else ""), str(found[method]["nll"]["seeds"])]
        lines.append(line + [_entry(metric, found[method][metric]) for metric in COLUMNS])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _place(method: str) -> tuple[int, int]:
    name, _, count = method.partition("@")
    return int(count or 0), list(TITLES).index(name)


def _entry(metric: str, entry: Mapping[str, float]) -> str:
    _, factor, digits = COLUMNS[metric]
    text = f"{factor * entry['mean']:.{digits}f}"
    if "difference" not in entry:
        return text
    gain = entry["difference"] * (1 if metric in LARGER else -1)
    mark = "**" if gain > 2 * entry["error"] else "*" if -gain > entry["error"] else ""
    gap = f"{factor * entry['difference']:+.{digits}f} ± {factor * entry['error']:.{digits}f}"
    return f"{text} ({mark}{gap}{mark})"


def draw(rows: Sequence[dict[str, Any]], path: Path, method: str = "cvp-isotropic") -> None:
    """NLL and AURC against temperature scaling on the same held-out examples, with two standard errors."""
    import matplotlib.pyplot as plt  # type: ignore[import-not-found,import-untyped,unused-ignore]

    found, everything = compare_paired(rows), max(row.get("examples", 0) for row in rows)
    by_size = {int(name.partition("@")[2] or everything): name for name in found if name.partition("@")[0] == method}
    sizes, names = zip(*sorted(by_size.items()), strict=True)
    figure, axes = plt.subplots(1, 2, figsize=(9, 2.8), layout="constrained")
    for axis, metric in zip(axes, ("nll", "aurc"), strict=True):
        title, factor, _ = COLUMNS[metric]
        gaps, errors = ([factor * found[name][metric][key] for name in names] for key in ("difference", "error"))
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.errorbar(sizes, gaps, [2 * error for error in errors], marker="o", capsize=3)
        axis.set(xscale="log", xlabel="held-out images", title=f"{title}, against temperature scaling")
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes], minor=False)
        axis.minorticks_off()
    figure.savefig(path, metadata={"Date": None})


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    given = read(Path(sys.argv[1]))
    sys.stdout.write(table(given))
    if len(sys.argv) > 2:
        draw(given, Path(sys.argv[2]))
