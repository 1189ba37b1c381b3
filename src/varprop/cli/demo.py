"""``varprop demo``: a small vision transformer on handwritten digits, trained with IVON; ways to predict compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from varprop.calibration.fixed_epochs import FixedEpochs
from varprop.cli.references import writable
from varprop.errors import InputError
from varprop.evaluation.cost import relative_costs
from varprop.evaluation.evaluate import measure
from varprop.evaluation.methods import listed
from varprop.evaluation.results import Results
from varprop.optim import IVON
from varprop.posterior import Posterior

NAME = "digits"
METHODS = tuple(listed("mean,temperature,mc-2,mc-8,mc-64,streamlining,cvp"))
SIZES = 600, 600, 597
"""Few images to train on, so that the network has something to be uncertain about; then held-out and test images."""
EPOCHS, BATCH = 25, 32
IVON_SETTINGS: dict[str, Any] = {
    "lr": 1.0,
    "ess": 1e4,
    "hess_init": 0.1,
    "beta2": 0.9995,
    "weight_decay": 1e-4,
    "clip_radius": 0.05,
}
CALIBRATION: dict[str, Any] = {"batch_size": 100, "epochs": 20, "lr": 0.1}  # few images make few steps
CONFIG = {
    "title": "Digits (small ViT)",
    "about": "A ViT of 27,000 weights trained on 600 of scikit-learn's handwritten digits.",
    "epochs": EPOCHS,
    "batch": BATCH,
    "ivon": IVON_SETTINGS,
    "calibration": CALIBRATION,
}


class Part(NamedTuple):
    """Images [N, 1, 8, 8] from −1 to 1, and their labels [N]."""

    images: Tensor
    labels: Tensor


class Block(nn.Module):
    """Attention and MLP, each after a norm and added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class DigitViT(nn.Module):
    """Sixteen overlapping patches, learned positions, two blocks, and a linear head on the mean token."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, kernel_size=4, stride=2, padding=1)
        self.position = nn.Parameter(torch.randn(1, 16, width) / 2)
        self.blocks = nn.Sequential(Block(width, heads), Block(width, heads))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.blocks(tokens)).mean(1))


def read_digits() -> tuple[Part, Part, Part]:
    """To train on, to hold out and to test on: the same images for every seed."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError:
        raise InputError("the digits come with scikit-learn: pip install 'varprop[demo]'") from None
    data = load_digits()
    images, labels = torch.tensor(data.images).float().unsqueeze(1) / 8 - 1, torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, held_out, test = (Part(images[some], labels[some]) for some in order.split(SIZES))
    return train, held_out, test


def train(part: Part, seed: int) -> tuple[nn.Module, Posterior]:
    """With IVON: linear warm-up, then half a cosine down to 0."""
    torch.manual_seed(seed)
    model = DigitViT()
    optimizer = IVON(model.parameters(), **IVON_SETTINGS, seed=seed)
    steps = EPOCHS * math.ceil(len(part.labels) / BATCH)
    rate = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, IVON_SETTINGS["lr"], steps, cycle_momentum=False, anneal_strategy="cos"
    )
    for _ in tqdm(range(EPOCHS), desc=f"train, seed {seed}", unit=" epochs", disable=None, leave=False):
        for chosen in torch.randperm(len(part.labels)).split(BATCH):
            optimizer.zero_grad()
            with optimizer.sampled_params(train=True):
                F.cross_entropy(model(part.images[chosen]), part.labels[chosen]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            rate.step()
    return model.eval(), Posterior.from_ivon(model, optimizer)


def demonstrate(out: Path, seeds: Sequence[int], *, costs: bool) -> Results:
    """Every method with every seed, a row for each in the results folder."""
    torch.set_num_threads(1)  # the network is too small to gain from more
    part, held_out, test = read_digits()
    results = Results(writable(out))
    _ = results.rows  # refuses a folder that holds something else
    shown = (test.images[:, 0] * 127.5 + 127.5).round().to(torch.uint8).numpy()
    results.add_examples(shown, [str(digit) for digit in range(10)], row=NAME)
    for seed in seeds:
        model, posterior = train(part, seed)
        found = relative_costs(METHODS, model, posterior, test.images[:64]) if costs else {}
        for method in METHODS:
            predictor = method.build(model, posterior, [held_out], seed=seed, paper=FixedEpochs(**CALIBRATION))
            row, scores = measure(predictor, [held_out], [test], row=NAME, method=method.slug, seed=seed, config=CONFIG)
            results.add(replace(row, cost=found.get(method.slug)), scores)
    return results
