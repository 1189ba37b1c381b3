"""Regression on seven UCI data sets, over the 20 splits that the field uses: networks trained with AdamW.

``python -m experiments.uci DATA OUT`` writes a line of JSON for each data set, split and method; a run that was stopped
goes on where it was. The plain network has one noise for all examples, fitted on the held-out part; the others also
have what propagation says about each example.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from tqdm import tqdm  # type: ignore[import-untyped]

from experiments.row_files import add_rows, read_rows
from varprop import links
from varprop.calibration.calibrate import fit
from varprop.errors import InputError
from varprop.moments import Moments
from varprop.posterior import Posterior
from varprop.prediction.prediction import Regression

SETS = ("bostonHousing", "concrete", "energy", "kin8nm", "power-plant", "wine-quality-red", "yacht")
SPLITS = 20
HELD_OUT = 0.2  # of what is not tested on
LEVEL = 0.95
STEPS, BATCH, HIDDEN = 3000, 64, 50


@dataclass(frozen=True)
class Part:
    """Inputs, and targets of one column."""

    x: Tensor
    y: Tensor


def split(folder: Path, name: str, number: int) -> tuple[Part, Part, Part, float]:
    """Training, held-out and test part, standardised by the first, and the scale of its targets."""
    with np.load(folder / f"{name}.npz", allow_pickle=False) as file:
        x, y, tested = (file[key] for key in ("x", "y", "test_mask"))
    rest = np.flatnonzero(~tested[number].astype(bool))
    rest = rest[torch.randperm(len(rest), generator=torch.Generator().manual_seed(number)).numpy()]
    cut = int(HELD_OUT * len(rest))
    rows = rest[cut:], rest[:cut], np.flatnonzero(tested[number])
    centre, spread = x[rows[0]].mean(0), x[rows[0]].std(0)
    mean, scale = y[rows[0]].mean(), y[rows[0]].std()
    parts = [
        Part(
            torch.tensor((x[r] - centre) / np.where(spread > 0, spread, 1), dtype=torch.float32),
            torch.tensor((y[r] - mean) / scale, dtype=torch.float32)[:, None],
        )
        for r in rows
    ]
    return parts[0], parts[1], parts[2], float(scale)


def train(part: Part, seed: int) -> tuple[nn.Module, torch.optim.AdamW]:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(part.x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        rows = torch.randint(len(part.x), (BATCH,))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(part.x[rows]), part.y[rows]).backward()
        optimizer.step()
        schedule.step()
    return model.eval(), optimizer


def predictions(
    model: nn.Module, optimizer: torch.optim.AdamW, parts: tuple[Part, Part, Part]
) -> dict[str, Regression]:
    """Of the test part, by each method."""
    trained, held_out, test = parts
    with torch.no_grad():
        spread = float((model(held_out.x) - held_out.y).square().mean().sqrt())
        found = {"noise alone": links.Gaussian(spread)(Moments(mean := model(test.x), torch.zeros_like(mean)))}
    posteriors = {
        "CVP, isotropic": None,
        "CVP, Adam": Posterior.from_adam(model, optimizer, batch_size=BATCH, examples=len(trained.x)),
    }
    for name, posterior in posteriors.items():
        predictor = fit(model, [(held_out.x, held_out.y)], posterior, link=links.Gaussian(), progress=False)
        found[name] = predictor(test.x)
    return found


def score(prediction: Regression, target: Tensor, scale: float) -> dict[str, float]:
    """In the units of the data."""
    low, high = prediction.interval(LEVEL)
    normal = torch.distributions.Normal(prediction.mean, prediction.std)
    return {
        "log_likelihood": float(normal.log_prob(target).mean()) - math.log(scale),
        "rmse": float((prediction.mean - target).square().mean().sqrt()) * scale,
        "covered": float(((low <= target) & (target <= high)).float().mean()),
        "width": float((high - low).mean()) * scale,
    }


def run(folder: Path, out: Path) -> None:
    done = {(row["set"], row["split"]) for row in read_rows(out)}
    todo = [(name, number) for number in range(SPLITS) for name in SETS if (name, number) not in done]
    for name, number in tqdm(todo, unit=" splits"):
        *parts, scale = split(folder, name, number)
        model, optimizer = train(parts[0], number)
        found = predictions(model, optimizer, (parts[0], parts[1], parts[2]))
        rows = [
            {"set": name, "split": number, "method": method, **score(prediction, parts[2].y, scale)}
            for method, prediction in found.items()
        ]
        add_rows(out, rows)


def summary(rows: Sequence[Mapping[str, Any]], reference: str = "noise alone") -> pd.DataFrame:
    """Means over splits, and what sets each method apart from the reference, with the standard error over splits."""
    table = pd.DataFrame(rows).set_index(["set", "split", "method"]).unstack("method")
    lines = []
    for name, part in table.groupby(level="set"):
        for method in part["rmse"].columns:
            gain = part["log_likelihood"][method] - part["log_likelihood"][reference]
            lines.append(
                {
                    "set": name,
                    "method": method,
                    "log-likelihood": part["log_likelihood"][method].mean(),
                    "gain": gain.mean(),
                    "± s.e.": gain.sem(),
                    "RMSE": part["rmse"][method].mean(),
                    "inside 95 %": part["covered"][method].mean(),
                    "interval width": part["width"][method].mean(),
                    "splits": int(gain.count()),
                }
            )
    return pd.DataFrame(lines)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise InputError("usage: python -m experiments.uci DATA OUT")
    run(Path(sys.argv[1]), Path(sys.argv[2]))
    tqdm.write(summary(read_rows(Path(sys.argv[2]))).to_markdown(index=False, floatfmt=".3f"))
