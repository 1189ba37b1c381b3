"""Data that a network was not trained for: other data sets, told apart by uncertainty; changed images, judged by risk.

Rows are lines of JSON; what is in the file already is not done again.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor

from experiments.data.corruptions import KINDS, STRENGTHS, corrupted
from experiments.data.examples import Examples, PreparedBatches
from experiments.data.idx import fashion_mnist, mnist
from experiments.data.imagenet import tiny_imagenet
from experiments.pipeline import Pipeline, TrainedNetwork
from experiments.row_files import add_rows, read_rows
from varprop.evaluation.evaluate import evaluate
from varprop.evaluation.methods import Method, method_of
from varprop.prediction.prediction import Prediction
from varprop.prediction.predictors import Predictor
from varprop.prediction.scores import entropy, max_probability, mutual_information, total_variance

FILE = "shift.jsonl"
COUNT = 2_000
"""Images of another data set at most."""
SCORES: Mapping[str, Callable[[Prediction], Tensor]] = {
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
Corrupted = Mapping[str, Callable[[], Examples]]
"""Test images by kind and strength of corruption; strength 0 are the images as they are."""


# --- data --------------------------------------------------------------------------------------------


def _small_tiny_imagenet(folder: Path | None) -> Examples:
    """In 32 × 32, as CIFAR-10 has it."""
    images = tiny_imagenet(folder).test.take(slice(COUNT))
    small = F.interpolate(images.inputs.float(), (32, 32), mode="bilinear", antialias=True)
    return Examples(small.round().clamp(0, 255).to(torch.uint8), images.labels)


_MNIST = "MNIST", lambda folder: mnist(folder).test.take(slice(COUNT))
_FASHION_MNIST = "Fashion-MNIST", lambda folder: fashion_mnist(folder).test.take(slice(COUNT))
_TINY_IMAGENET = "Tiny-ImageNet", _small_tiny_imagenet
OUT_OF_DISTRIBUTION: Mapping[str, tuple[str, Callable[[Path | None], Examples]]] = {
    "garments-cnn": _MNIST,
    "fashion-mnist": _MNIST,
    "fashion-mnist-cnn": _MNIST,
    "digits-cnn": _FASHION_MNIST,
    "cifar10-vit": _TINY_IMAGENET,
    "objects-vit": _TINY_IMAGENET,
}
"""By row, with AdamW or without: the other data set and its reader."""


def out_of_distribution(row: str, folder: Path | None) -> dict[str, Examples]:
    """Another data set for a row, by name; of most rows none."""
    found = OUT_OF_DISTRIBUTION.get(row.removesuffix("-adamw"))
    return {found[0]: found[1](folder)} if found else {}


def corruptions_of(images: Examples, count: int) -> Corrupted:
    """The test images as they are, and the first of them in every kind and strength of corruption, each made once."""
    some = images.take(slice(count))
    kinds = [(kind, strength) for kind in KINDS for strength in STRENGTHS] if count else []
    made = functools.cache(functools.partial(corrupted, some))  # as bytes; all networks and methods are shown the same
    return {"none 0": lambda: images} | {f"{k} {s}": functools.partial(made, k, s) for k, s in kinds}


def mixed_corruptions_of(images: Examples) -> Corrupted:
    """The test images as they are, and in every strength all of them, each in one of the kinds: few images suffice."""
    edges = [len(images) * i // len(KINDS) for i in range(len(KINDS) + 1)]

    @functools.cache
    def made(strength: int) -> Examples:
        parts = [images.take(slice(*pair)) for pair in itertools.pairwise(edges)]
        changed = [corrupted(part, kind, strength).inputs for part, kind in zip(parts, KINDS, strict=True)]
        return Examples(torch.cat(changed), images.labels)

    return {"none 0": lambda: images} | {f"mixed {s}": functools.partial(made, s) for s in STRENGTHS}


# --- rows --------------------------------------------------------------------------------------------


def shift_rows(pipeline: Pipeline, others: Mapping[str, Examples], changed: Corrupted) -> list[dict[str, Any]]:
    """All rows. Every method is calibrated on the held-out data of the training set alone."""
    name, file = pipeline.experiment.name, pipeline.folder / FILE
    pipeline.folder.mkdir(parents=True, exist_ok=True)
    pipeline.train(pipeline.seeds)
    done = {(row["row"], row["seed"], row["method"], row["data"]) for row in read_rows(file)}

    def lacking(seed: int, method: Method) -> list[str]:
        return [data for data in (*others, *changed) if (name, seed, method.slug, data) not in done]

    for seed in pipeline.seeds:
        todo = {method: data for method in pipeline.experiment.methods if (data := lacking(seed, method))}
        network = pipeline.network(seed) if todo else None
        for method, data in todo.items():
            assert network is not None
            pipeline.log(f"seed {seed}: {method.title}")
            predictor = network.predictor(method, progress=False)
            entries = {"row": name, "seed": seed, "method": method.slug}
            its_others = {name: examples for name, examples in others.items() if name in data}
            its_changed = {name: images for name, images in changed.items() if name in data}
            add_rows(file, (entries | row for row in _measured(predictor, network, its_others, its_changed)))
    return read_rows(file)


def _measured(
    predictor: Predictor, network: TrainedNetwork, others: Mapping[str, Examples], changed: Corrupted
) -> Iterator[dict[str, Any]]:
    inside = uncertainty_scores(predictor, network.test) if others else {}
    for name, examples in others.items():
        outside = uncertainty_scores(predictor, replace(network.test, examples=examples))
        pairs = {score: (inside[score], outside[score]) for score in SCORES}
        scores = {score: {"auroc": auroc(*pair), "fpr95": accepted(*pair)} for score, pair in pairs.items()}
        yield {"data": name, "scores": scores}
    for name, images in changed.items():
        metrics = evaluate(predictor, replace(network.test, examples=images()), progress=False).metrics
        yield {"data": name, "metrics": {key: metrics[key] for key in JUDGED}}


@torch.no_grad()
def uncertainty_scores(predictor: Predictor, batches: PreparedBatches) -> dict[str, Tensor]:
    """Every score of every example, on the CPU."""
    found: dict[str, list[Tensor]] = defaultdict(list)
    for x, _ in batches:
        prediction = predictor(x)
        for name, score in SCORES.items():
            found[name].append(score(prediction).cpu())
    return {name: torch.cat(parts) for name, parts in found.items()}


def auroc(inside: Tensor, outside: Tensor) -> float:
    """The probability that an example from outside scores higher than one from inside; ties count half."""
    ordered = inside.double().sort().values
    below, upto = (torch.searchsorted(ordered, outside.double(), right=right) for right in (False, True))
    return float((below + upto).double().mean() / (2 * len(ordered)))


def accepted(inside: Tensor, outside: Tensor, level: float = LEVEL) -> float:
    """FPR@95: the share of the outside that scores no higher than the lowest threshold that accepts 95 % inside."""
    threshold = inside.sort().values[math.ceil(level * len(inside)) - 1]
    return float((outside <= threshold).double().mean())


# --- tables ------------------------------------------------------------------------------------------


def _table(title: str, columns: Collection[Any]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("method")
    for column in columns:
        table.add_column(str(column), justify="right")
    return table


def detection_table(rows: Sequence[Mapping[str, Any]], name: str, data: str) -> Table:
    """AUROC of each score by method, in percent, and FPR@95 behind it: means over seeds, with their standard errors."""
    table = _table(f"{name} against {data}: AUROC % ↑ (FPR@95 % ↓)", SCORES)
    some = [row for row in rows if row["row"] == name and row["data"] == data]
    for method in dict.fromkeys(row["method"] for row in some):
        its = [row["scores"] for row in some if row["method"] == method]
        blind = method_of(method).rules is None and method_of(method).samples is None  # no variance to go by
        cells = []
        for score in SCORES:
            area, rate = (_mean([each[score][key] for each in its]) for key in ("auroc", "fpr95"))
            cells.append("–" if blind and score in OF_WEIGHTS else f"{area} ({rate})")
        table.add_row(method_of(method).title, *cells)
    return table


def risk_table(rows: Sequence[Mapping[str, Any]], name: str, metric: str) -> Table:
    """A metric by method and strength, averaged over kinds of corruption and then over seeds."""
    found: dict[str, dict[int, dict[int, list[float]]]] = {}  # by method, strength and seed
    for row in rows:
        if row["row"] == name and "metrics" in row:
            strength = int(row["data"].rpartition(" ")[2])
            by_seed = found.setdefault(row["method"], {}).setdefault(strength, {})
            by_seed.setdefault(row["seed"], []).append(row["metrics"][metric])
    strengths = sorted({strength for by_strength in found.values() for strength in by_strength})
    table = _table(f"{name}: {metric} by strength", strengths)
    for method, by_strength in found.items():
        seeds = [by_strength.get(strength, {}).values() for strength in strengths]
        table.add_row(method_of(method).title, *(_mean([sum(x) / len(x) for x in each]) for each in seeds))
    return table


def _mean(values: Sequence[float]) -> str:
    x = 100 * torch.tensor(values, dtype=torch.float64)
    if not len(x):
        return "–"
    return f"{float(x.mean()):.1f}" + (f" ± {float(x.std() / len(x) ** 0.5):.1f}" if len(x) > 1 else "")
