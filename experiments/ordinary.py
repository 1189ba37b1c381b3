"""Ordinary networks: what a posterior and a calibration add to a checkpoint, beside what else could be done with it.

``python -m experiments.ordinary FILE`` prints rows of ``checkpoint_study`` as a table; with a second name, that of a
picture, what sets methods apart from temperature scaling is drawn there against the number of held-out examples.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.checkpoint_study import ENSEMBLE_SIZE, FINAL_SAMPLES
from experiments.row_files import read_rows, unpacked, unpacked_scores
from varprop import metrics
from varprop.errors import InputError
from varprop.evaluation.evaluated import RISKS

COLUMNS = {
    "accuracy": ("accuracy, %", 100, 2),
    "aurc": ("AURC × 100", 100, 2),
    "nll": ("NLL", 1, 4),
    "brier": ("Brier", 1, 4),
    "ece": ("ECE, %", 100, 2),
    "c@1": ("C@1 %, %", 100, 1),
}
LARGER = ("accuracy", "c@1")  # is better
RESAMPLES = 100
Pair = tuple[dict[str, Any], dict[str, Any]]
"""The rows of a method and of the reference, with one seed."""
TITLES = {
    "mean": "mean network",
    "temperature": "temperature scaling",
    "cvp-adam": "CVP, variances from Adam",
    "cvp-adam-bfloat16": "the same in bfloat16",
    "cvp-isotropic": "CVP, one variance for all weights",
    "cvp-adam-fixed": "CVP, variances from Adam, fixed width",
    "cvp-isotropic-width": "CVP, one variance for all weights, one of two widths",
    "cvp-isotropic-fixed": "CVP, one variance for all weights, fixed width",
    "factored-adam": "FACTORED, variances from Adam",
    f"ensemble-{ENSEMBLE_SIZE}": f"{ENSEMBLE_SIZE} networks",
    "mc-adam": f"{FINAL_SAMPLES} samples, variances from Adam",
    "mc-isotropic": f"{FINAL_SAMPLES} samples, one variance for all",
    "laplace": f"{FINAL_SAMPLES} samples, diagonal Laplace",
    "swag": f"{FINAL_SAMPLES} samples, diagonal SWAG",
    "last-layer": "CVP, last layer alone",
    "cvp-adam-paper": "CVP, the paper's calibration",
}


def compare_paired(rows: Sequence[dict[str, Any]], reference: str = "temperature") -> dict[str, dict[str, Any]]:
    """For each method and metric: the mean over seeds, and the mean and standard error of what sets it apart.

    The error is over seeds, and over test examples too where rows hold the scores of each, or, of accuracy, which of
    them were right.
    """
    by_method: dict[str, dict[int, dict[str, Any]]] = {}
    for row in rows:
        by_method.setdefault(row["method"], {})[row["seed"]] = row
    found: dict[str, dict[str, Any]] = {}
    for method, seeds in by_method.items():
        name, at, count = method.partition("@")
        beside = by_method.get(f"{reference}{at}{count}", {})
        common = sorted(set(seeds) & set(beside))
        pairs = [(seeds[seed], beside[seed]) for seed in common]
        sampled = _bootstrap(pairs) if name != reference and len(common) > 1 else {}
        for metric in next(iter(seeds.values()))["metrics"]:
            values = torch.tensor([row["metrics"][metric] for row in seeds.values()], dtype=torch.float64)
            entry = {"mean": float(values.mean()), "seeds": len(seeds)}
            if name != reference and len(common) > 1:
                gaps = [here["metrics"][metric] - there["metrics"][metric] for here, there in pairs]
                by_seed = torch.tensor(gaps, dtype=torch.float64)
                error = math.hypot(_error(by_seed), sampled.get(metric, 0.0))
                entry |= {"difference": float(by_seed.mean()), "error": error}
                if metric == "accuracy":
                    entry |= _by_example(pairs)
            found.setdefault(method, {})[metric] = entry
    return found


def _bootstrap(pairs: Sequence[Pair]) -> dict[str, float]:
    """How the mean difference of each metric varies over test sets drawn from the examples, if they have scores."""
    if not _same_examples(pairs) or not all("scores" in each for pair in pairs for each in pair):
        return {}
    scores = [[unpacked_scores(each) for each in pair] for pair in pairs]
    count, generator = len(scores[0][0]["nll"]), torch.Generator().manual_seed(0)
    drawn: dict[str, list[float]] = {metric: [] for metric in COLUMNS}
    for _ in range(RESAMPLES):
        rows = torch.randint(count, (count,), generator=generator)
        values = [[metrics_of({name: x[rows] for name, x in each.items()}) for each in pair] for pair in scores]
        for metric, found in drawn.items():
            found.append(statistics.fmean(here[metric] - there[metric] for here, there in values))
    return {metric: statistics.stdev(found) for metric, found in drawn.items()}


def metrics_of(scores: Mapping[str, Tensor]) -> dict[str, float]:
    """Of examples, those of the table."""
    confidence, correctness = scores["confidence"], scores["correctness"]
    return {
        "accuracy": float(correctness.mean()),
        "aurc": float(metrics.aurc(confidence, correctness)),
        "nll": float(scores["nll"].mean()),
        "brier": float(scores["brier"].mean()),
        "ece": float(metrics.ece(confidence, correctness)),
        "c@1": float(metrics.coverage_at_risk(confidence, correctness, RISKS["c@1"])),
    }


def _same_examples(pairs: Sequence[Pair]) -> bool:
    """Were all networks tested on the same?"""
    tests = {(each.get("right") or {"labels": None})["labels"] for pair in pairs for each in pair}
    return len(tests) == 1 and None not in tests


def _by_example(pairs: Sequence[Pair]) -> dict[str, float]:
    """What examples add to accuracy, if all networks were tested on the same."""
    if not _same_examples(pairs):
        return {}
    here, there = (torch.stack([unpacked(each["right"]) for each in some]) for some in zip(*pairs, strict=True))
    won, lost = (float(some.sum(1).double().mean()) for some in (here & ~there, there & ~here))
    return {"error": two_way_error(here.double() - there.double()), "won": won, "lost": lost}


def two_way_error(gaps: Tensor) -> float:
    """The standard error of the mean of [seed, example], where both are drawn: other networks, other test examples.

    The squares of the errors over seeds and over examples add up. What a seed and an example have of their own together
    is in both, so that the sum is too large rather than too small.
    """
    return math.hypot(_error(gaps.mean(1)), _error(gaps.mean(0)))


def _error(values: Tensor) -> float:
    return float(values.std()) / math.sqrt(len(values))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: what each method has, and beside it what sets it apart from temperature scaling, paired by seed.

    In bold what is better by more than two standard errors, in italics what is worse by more than one. Where rows hold
    which examples were right, a last column counts those right with this method alone, and with the other alone.
    """
    found = compare_paired(rows)
    counted = any("won" in each["accuracy"] for each in found.values())
    titles = ["", "seeds", *(title for title, _, _ in COLUMNS.values()), *["won, lost"] * counted]
    lines = [titles, ["---", *["---:"] * (len(titles) - 1)]]
    for method in sorted(found, key=_place):
        name, at, count = method.partition("@")
        line = [TITLES.get(name, name) + (f", {count} held-out" if at else ""), str(found[method]["nll"]["seeds"])]
        line += [_entry(metric, found[method][metric]) for metric in COLUMNS]
        lines.append(line + [_counts(found[method]["accuracy"])] * counted)
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


def _counts(entry: Mapping[str, float]) -> str:
    """Of a network, on average."""
    return f"{entry['won']:.1f}, {entry['lost']:.1f}" if "won" in entry else ""


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


if __name__ == "__main__":
    if not (given := read_rows(Path(sys.argv[1]))):
        raise InputError(f"{sys.argv[1]} holds no rows")
    sys.stdout.write(table(given))
    if len(sys.argv) > 2:
        draw(given, Path(sys.argv[2]))
