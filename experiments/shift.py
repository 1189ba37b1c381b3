"""Data that a network was not trained for: other data sets, told apart by uncertainty; changed images, judged by risk.

Rows are lines of JSON; what is in the file already is not done again.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from experiments.data.images import Images
from experiments.data.labelled import Labelled
from experiments.loading import PreparedBatches
from experiments.pipeline import Pipeline, Subject
from varprop.calibration.fixed_epochs import FixedEpochs
from varprop.evaluation.evaluate import evaluate
from varprop.evaluation.methods import Method, method_of
from varprop.prediction.prediction import Prediction
from varprop.prediction.predictors import Predictor
from varprop.prediction.scores import entropy, max_probability, mutual_information, total_variance

Score = Callable[[Prediction], Tensor]
SCORES: Mapping[str, Score] = {
    "confidence": max_probability,
    "entropy": entropy,
    "mutual information": mutual_information,
    "logit variance": total_variance,
}
OF_WEIGHTS = ("mutual information", "logit variance")
"""What only a method with a variance has."""
LEVEL = 0.95
"""Of FPR@95: the share of the data set's own examples that are accepted."""
JUDGED = ("accuracy", "aurc", "nll", "ece")


def auroc(inside: Tensor, outside: Tensor) -> float:
    """The probability that an example from outside scores higher than one from inside; ties count half."""
    ordered = inside.double().sort().values
    below, upto = (torch.searchsorted(ordered, outside.double(), right=right) for right in (False, True))
    return float((below + upto).double().mean() / (2 * len(ordered)))


def accepted(inside: Tensor, outside: Tensor, level: float = LEVEL) -> float:
    """FPR@95: the share of the outside that scores no higher than the lowest threshold that accepts 95 % inside."""
    threshold = inside.sort().values[math.ceil(level * len(inside)) - 1]
    return float((outside <= threshold).double().mean())


@dataclass
class Shift:
    """Some seeds of an experiment, beside data from elsewhere."""

    pipeline: Pipeline
    outside: Mapping[str, Labelled]
    """Other data sets, by name."""
    changed: Mapping[tuple[str, int], Callable[[], Images]] = field(default_factory=dict)
    """Test images by kind and strength of a change; strength 0 are the images as they are."""

    @property
    def file(self) -> Path:
        return self.pipeline.folder / "shift.jsonl"

    def run(self) -> list[dict[str, Any]]:
        """All rows. Every method is calibrated on the held-out data of the training set alone."""
        self.pipeline.folder.mkdir(parents=True, exist_ok=True)
        name = self.pipeline.experiment.name
        self.pipeline.train(self.pipeline.seeds)
        for seed, method in itertools.product(self.pipeline.seeds, self.pipeline.experiment.methods):
            done = {_key(row) for row in read_rows(self.file)}
            wanted = [key for key in self._keys(seed, method) if key not in done]
            if wanted:
                self.pipeline.say(f"seed {seed}: {method.title}")
                subject = self._subject(seed)
                predictor = subject.predictor(method, FixedEpochs(**self.pipeline.recipe.calibration), progress=False)
                entries = {"row": name, "seed": seed, "method": method.slug}
                with self.file.open("a") as file:
                    for row in self._rows(predictor, subject, wanted):
                        file.write(json.dumps(entries | row) + "\n")
        return read_rows(self.file)

    def _keys(self, seed: int, method: Method) -> Iterator[tuple[Any, ...]]:
        start = self.pipeline.experiment.name, seed, method.slug
        yield from ((*start, name) for name in self.outside)
        yield from ((*start, f"{kind} {strength}") for kind, strength in self.changed)

    def _rows(
        self, predictor: Predictor, subject: Subject, wanted: Sequence[tuple[Any, ...]]
    ) -> Iterator[dict[str, Any]]:
        data = {key[-1] for key in wanted}
        others = {name: examples for name, examples in self.outside.items() if name in data}
        inside = strangeness(predictor, subject.test) if others else {}
        for name, examples in others.items():
            found = strangeness(predictor, self._batches(examples))
            pairs = {score: (inside[score], found[score]) for score in SCORES}
            scores = {score: {"auroc": auroc(*pair), "fpr95": accepted(*pair)} for score, pair in pairs.items()}
            yield {"data": name, "scores": scores}
        for (kind, strength), images in self.changed.items():
            if f"{kind} {strength}" in data:
                metrics = evaluate(predictor, self._batches(images()), progress=False).metrics
                yield {"data": f"{kind} {strength}", "metrics": {key: metrics[key] for key in JUDGED}}

    def _subject(self, seed: int) -> Subject:
        if getattr(self, "_known", (None, None))[0] != seed:
            self._known = seed, self.pipeline.subject(seed)
        return self._known[1]

    def _batches(self, examples: Labelled) -> PreparedBatches:
        return PreparedBatches(examples, self.pipeline.experiment.prepare, 250, self.pipeline.device)


@torch.no_grad()
def strangeness(predictor: Predictor, batches: PreparedBatches) -> dict[str, Tensor]:
    """Every score of every example, on the CPU."""
    found: dict[str, list[Tensor]] = defaultdict(list)
    for x, _ in batches:
        prediction = predictor(x)
        for name, score in SCORES.items():
            found[name].append(score(prediction).cpu())
    return {name: torch.cat(parts) for name, parts in found.items()}


def read_rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["row"], row["seed"], row["method"], row["data"]


def detection_table(rows: Sequence[Mapping[str, Any]], name: str, data: str) -> Table:
    """AUROC of each score by method, in percent, and FPR@95 behind it: means over seeds, with their standard errors."""
    table = Table(title=f"{name} against {data}: AUROC % ↑ (FPR@95 % ↓)", title_justify="left", title_style="bold")
    table.add_column("method")
    for score in SCORES:
        table.add_column(score, justify="right")
    some = [row for row in rows if row["row"] == name and row["data"] == data]
    for method in dict.fromkeys(row["method"] for row in some):
        its = [row["scores"] for row in some if row["method"] == method]
        pairs = [[_mean([each[score][key] for each in its]) for key in ("auroc", "fpr95")] for score in SCORES]
        blind = method_of(method).rules is None and method_of(method).samples is None  # no variance to go by
        cells = [
            "–" if blind and score in OF_WEIGHTS else f"{area} ({rate})"
            for score, (area, rate) in zip(SCORES, pairs, strict=True)
        ]
        table.add_row(method_of(method).title, *cells)
    return table


def risk_table(rows: Sequence[Mapping[str, Any]], name: str, metric: str) -> Table:
    """A metric by method and strength, averaged over kinds of change and then over seeds."""
    table = Table(title=f"{name}: {metric} by strength", title_justify="left", title_style="bold")
    table.add_column("method")
    some = [row for row in rows if row["row"] == name and "metrics" in row]
    strengths = sorted({int(row["data"].rpartition(" ")[2]) for row in some})
    for strength in strengths:
        table.add_column(str(strength), justify="right")
    for method in dict.fromkeys(row["method"] for row in some):
        cells = []
        for strength in strengths:
            by_seed = defaultdict(list)
            for row in some:
                if row["method"] == method and row["data"].endswith(f" {strength}"):
                    by_seed[row["seed"]].append(row["metrics"][metric])
            cells.append(_mean([sum(values) / len(values) for values in by_seed.values()]))
        table.add_row(method_of(method).title, *cells)
    return table


def _mean(values: Sequence[float]) -> str:
    x = 100 * torch.tensor(values, dtype=torch.float64)
    if not len(x):
        return "–"
    return f"{float(x.mean()):.1f}" + (f" ± {float(x.std() / len(x) ** 0.5):.1f}" if len(x) > 1 else "")
