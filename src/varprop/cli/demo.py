"""``varprop demo``: an ordinary network trained with AdamW, what ``vp.fit`` makes of it, and what that is worth."""

from __future__ import annotations

import functools
import gzip
import itertools
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from varprop.calibration.calibrate import fit
from varprop.cli.references import writable
from varprop.errors import InputError
from varprop.evaluation.cost import relative_costs
from varprop.evaluation.evaluate import measure
from varprop.evaluation.fidelity import compare
from varprop.evaluation.methods import listed, monte_carlo
from varprop.evaluation.results import Results
from varprop.network.moment_net import propagate
from varprop.posterior import Posterior
from varprop.prediction.monte_carlo import MonteCarlo
from varprop.prediction.predictors import MeanNetwork, Predictor, Propagated
from varprop.prediction.temperature import TemperatureScaled

FASHION = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts its files."""
GARMENTS = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
WIDTH, EPOCHS, BATCH = 256, 25, 256
ADAMW: dict[str, Any] = {"lr": 4e-3, "weight_decay": 0.05}
SHOWN = 400  # test images in the report
SIZES = (8000, 1000, 20_000, 10_000)
"""Images to train on, until nearly all are known by heart; few to calibrate with; many to certify and to test."""
NOISE = 0.7  # standard deviation, in digits from −1 to 1


class Part(NamedTuple):
    """Images [N, 1, h, w] from −1 to 1, and their labels [N]."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class DataSet:
    """What the network is trained on, calibrated on, certified on and tested on: the same images for every seed."""

    name: str
    title: str
    classes: tuple[str, ...]
    train: Part
    calibration: Part
    certification: Part
    test: Part

    @property
    def config(self) -> dict[str, Any]:
        sizes = {part: len(getattr(self, part).labels) for part in ("train", "calibration", "certification", "test")}
        about = f"A network of two hidden layers trained with AdamW on {sizes['train']:,} images."
        new = "others than those that methods were fitted on"
        settings = {"epochs": EPOCHS, "batch": BATCH, "adamw": ADAMW, "images": sizes}
        return {"title": self.title, "about": about, "certified_on": new, **settings}


def read_data() -> DataSet:
    """Fashion-MNIST where it is installed, else scikit-learn's digits."""
    return _fashion() if FASHION.is_dir() else _digits()


def _fashion() -> DataSet:
    images, labels = (
        torch.cat([_idx(FASHION / f"{part}-{kind}.gz", start) for part in ("train", "t10k")])
        for kind, start in (("images-idx3-ubyte", 16), ("labels-idx1-ubyte", 8))
    )
    images = images.view(-1, 1, 28, 28).float() / 127.5 - 1
    order = torch.randperm(60_000, generator=torch.Generator().manual_seed(0))
    chosen = (*order[: sum(SIZES[:3])].split(SIZES[:3]), torch.arange(60_000, 60_000 + SIZES[3]))
    parts = [Part(images[some], labels[some].long()) for some in chosen]
    return DataSet("fashion-mnist", "Fashion-MNIST (small MLP, AdamW)", GARMENTS, *parts)


def _idx(path: Path, start: int) -> Tensor:
    """The values of an IDX file of bytes, behind its header."""
    return torch.from_numpy(np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=start).copy())


def _digits() -> DataSet:
    """Images of scikit-learn's digits, shifted and with noise: those to train on of one half of the digits, all others,
    which are alike, of the other half.
    """
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError:
        raise InputError("the digits come with scikit-learn: pip install 'varprop[demo]'") from None
    data = load_digits()
    images, labels = torch.tensor(data.images).float() / 8 - 1, torch.tensor(data.target)
    generator = torch.Generator().manual_seed(0)
    known, new = torch.randperm(len(labels), generator=generator).split((900, len(labels) - 900))

    def draw(digits: Tensor, count: int) -> Part:
        chosen = digits[torch.randint(len(digits), (count,), generator=generator)]
        places = torch.randint(3, (2, count), generator=generator)
        scenes = NOISE * torch.randn(count, 1, 10, 10, generator=generator) - 1
        for down, right in itertools.product(range(3), repeat=2):
            here = (places[0] == down) & (places[1] == right)
            scenes[here, 0, down : down + 8, right : right + 8] += images[chosen[here]] + 1
        return Part(scenes.clamp(-1, 1), labels[chosen])

    parts = [draw(known if part == 0 else new, count) for part, count in enumerate(SIZES)]
    return DataSet("noisy-digits", "Digits, shifted and noisy (small MLP, AdamW)", tuple(map(str, range(10))), *parts)


def train(part: Part, seed: int) -> tuple[nn.Module, torch.optim.AdamW]:
    """With AdamW and a learning rate that rises and falls once, as one would without thinking of uncertainty."""
    torch.manual_seed(seed)
    hidden = [(nn.Linear(size, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU()) for size in (part.images[0].numel(), WIDTH)]
    model = nn.Sequential(nn.Flatten(), *(layer for layers in hidden for layer in layers), nn.Linear(WIDTH, 10))
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    steps = EPOCHS * -(-len(part.labels) // BATCH)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, ADAMW["lr"], steps, cycle_momentum=False)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(part.labels)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(part.images[chosen]), part.labels[chosen]).backward()
            optimizer.step()
            rate.step()
    return model.eval(), optimizer


def demonstrate(out: Path, seeds: Sequence[int], *, samples: int = 0, costs: bool = False) -> Results:
    """Every method with every seed, a row for each in the results folder. Seeds run side by side, one to a core."""
    results = Results(writable(out))
    _ = results.rows  # refuses a folder that holds something else
    data = read_data()
    shown = (data.test.images[:SHOWN, 0] * 127.5 + 127.5).round().to(torch.uint8).numpy()
    results.add_examples(shown, data.classes, row=data.name)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    run = functools.partial(_run, out, samples=samples, costs=costs)
    with ProcessPoolExecutor(min(len(seeds), cores), multiprocessing.get_context("spawn")) as pool:
        done = pool.map(run, seeds)
        for _ in tqdm(done, desc="train, fit, test", total=len(seeds), unit=" seeds", disable=None, leave=False):
            pass
    return results


def _run(out: Path, seed: int, *, samples: int, costs: bool) -> None:
    """One seed: the rows of all methods."""
    torch.set_num_threads(1)  # the network is too small to gain from more
    data = read_data()
    model, optimizer = train(data.train, seed)
    posterior = Posterior.from_adam(model, optimizer)
    fitted = fit(model, data.calibration, posterior=posterior, progress=False)
    predictors: dict[str, Predictor] = {
        "mean": MeanNetwork(model),
        "temperature": TemperatureScaled(MeanNetwork(model)).fit(data.calibration),
    }
    wide = _widened(posterior, fitted)
    if samples:
        predictors[monte_carlo(samples).slug] = MonteCarlo(model, wide, samples, seed=seed)
    predictors["cvp"] = fitted
    timed = relative_costs(listed(",".join(predictors)), model, posterior, data.test.images[:64]) if costs else {}
    for slug, predictor in predictors.items():
        entries = {"row": data.name, "method": slug, "seed": seed, "config": data.config}
        row, scores = measure(predictor, data.certification, data.test, progress=False, **entries)
        if slug == "cvp":
            bare = compare(propagate(model, wide), MonteCarlo(model, wide, 128), data.test.images[:32])
            row = replace(row, fidelity=[asdict(each) | {"calibrated": False} for each in bare])
        Results(out).add(replace(row, cost=timed.get(slug)), scores)


def _widened(posterior: Posterior, fitted: Propagated) -> Posterior:
    """With the width that calibration found, Monte Carlo has the same posterior as propagation."""
    width = fitted.net.calibration.width if fitted.net.calibration else 0.0
    size = sum(float(weights.mean.square().sum()) for weights in posterior.values())
    noise = sum(float(weights.var.sum()) for weights in posterior.values())
    return posterior.scaled(width**2 * size / noise) if width else posterior
