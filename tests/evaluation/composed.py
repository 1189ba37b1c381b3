"""Small networks of four blocks with trained weights, and how near their moments are to samples, module by module.

    python -m tests.evaluation.composed train      # on digits; on prose or code from Python itself: a few minutes
    python -m tests.evaluation.composed measure    # 4,000 samples each, into composed.csv: minutes

The weights are kept beside this file, so that the table does not depend on how they were trained.
"""

from __future__ import annotations

import csv
import inspect
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import varprop as vp

HERE = Path(__file__).parent
TABLE, WEIGHTS = HERE / "composed.csv", HERE / "composed.safetensors"
SAMPLES, INPUTS, LENGTH = 4000, 8, 24


class Unet(nn.Module):
    """Which pixels of a noisy digit are ink? Two levels, skips, four blocks of two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.bottom = _block(1, 8), _block(8, 12), _block(12, 16)
        self.up2, self.up1 = nn.ConvTranspose2d(16, 12, 2, stride=2), nn.ConvTranspose2d(12, 8, 2, stride=2)
        self.join2, self.join1, self.head = _block(24, 12), _block(16, 8), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        second = self.second(F.max_pool2d(first, 2))
        x = self.up2(self.bottom(F.max_pool2d(second, 2)))
        x = self.up1(self.join2(torch.cat([second, x], 1)))
        return self.head(self.join1(torch.cat([first, x], 1)))


def _block(inputs: int, outputs: int) -> nn.Sequential:
    def half(width: int) -> tuple[nn.Module, ...]:
        return nn.Conv2d(width, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()

    return nn.Sequential(*half(inputs), *half(outputs))


SMALL = {"hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 48}


def vit() -> nn.Module:
    config = transformers.ViTConfig(**SMALL, image_size=8, patch_size=2, num_channels=1, num_labels=10)
    return transformers.ViTForImageClassification(config)


def bert() -> nn.Module:
    config = transformers.BertConfig(**SMALL, vocab_size=128, max_position_embeddings=LENGTH, num_labels=2)
    return transformers.BertForSequenceClassification(config)


def resnet() -> nn.Module:
    config = transformers.ResNetConfig(
        num_channels=1, embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], layer_type="basic", num_labels=10
    )
    return transformers.ResNetForImageClassification(config)


def digits(noise: float = 0.0) -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32)[:, None] / 8 - 1
    return x + noise * torch.randn(x.shape, generator=torch.Generator().manual_seed(0)), torch.tensor(data.target)


def ink() -> tuple[Tensor, Tensor]:
    return digits(0.7)[0], (digits()[0][:, 0] > 0).long()


def prose_or_code() -> tuple[Tensor, Tensor]:
    """Windows of characters: what `help()` prints, and the library's own source."""
    import argparse
    import decimal
    from pydoc_data.topics import topics

    texts = "".join(topics.values()), inspect.getsource(argparse) + inspect.getsource(sys.modules[decimal.__name__])
    rows = [torch.tensor([ord(c) % 128 for c in " ".join(text.split())]) for text in texts]
    count = 3000
    starts = torch.randint(0, min(map(len, rows)) - LENGTH, (2, count), generator=torch.Generator().manual_seed(0))
    windows = [row[start[:, None] + torch.arange(LENGTH)] for row, start in zip(rows, starts, strict=True)]
    mixed = torch.randperm(2 * count, generator=torch.Generator().manual_seed(1))
    return torch.cat(windows)[mixed], torch.arange(2).repeat_interleave(count)[mixed]


class Network(NamedTuple):
    """How one is built, what it learns from, for how many epochs."""

    build: Callable[[], nn.Module]
    data: Callable[[], tuple[Tensor, Tensor]]
    epochs: int


NETWORKS = {
    "ViT": Network(vit, digits, 40),
    "BERT": Network(bert, prose_or_code, 15),
    "ResNet": Network(resnet, digits, 12),
    "U-Net": Network(Unet, ink, 12),
}


def logits(model: nn.Module, x: Tensor) -> Tensor:
    found = model(x)
    return found if isinstance(found, Tensor) else found.logits


def train(name: str) -> tuple[dict[str, Tensor], float]:
    """The trained weights, and the accuracy on the last 300 examples, which were held out."""
    torch.manual_seed(0)
    model, (x, y) = NETWORKS[name].build().train(), NETWORKS[name].data()
    epochs, seen = NETWORKS[name].epochs, len(x) - 300
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=epochs * math.ceil(seen / 64))
    for _ in range(epochs):
        for rows in torch.randperm(seen).split(64):
            optimizer.zero_grad()
            F.cross_entropy(logits(model, x[rows]), y[rows]).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        right = (logits(model.eval(), x[seen:]).argmax(1) == y[seen:]).float().mean()
    return model.state_dict(), float(right)


def trained(name: str) -> tuple[nn.Module, Tensor]:
    """The network with the weights that are kept, and a few held-out inputs."""
    transformers.logging.set_verbosity_error()
    model = NETWORKS[name].build()
    kept = {key.removeprefix(f"{name}/"): value for key, value in load_file(WEIGHTS).items()}
    model.load_state_dict({key: kept[key].to(old.dtype) for key, old in model.state_dict().items()})
    return model.eval(), NETWORKS[name].data()[0][-INPUTS:]


@dataclass(frozen=True)
class Row:
    """One module of one network, the network's output last: its standard deviation over that of the samples, and how
    far the means are from theirs, in standard deviations.
    """

    network: str
    module: str
    ratio: float
    mean_error: float
    plain_error: float


def measure(name: str, samples: int) -> list[Row]:
    model, x = trained(name)
    posterior = vp.Posterior.isotropic(model)
    found = vp.compare(vp.propagate(model, posterior), vp.MonteCarlo(model, posterior, samples), x)
    return [
        Row(name, row.path, math.sqrt(row.variance_ratio), row.mean_error, row.plain_error)
        for row in found
        if row.module != "Dropout"
    ]


def pinned(name: str) -> list[Row]:
    with TABLE.open(newline="") as file:
        rows = [Row(r[0], r[1], *map(float, r[2:])) for r in list(csv.reader(file))[1:]]
    return [row for row in rows if row.network == name]


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1] == "train":
        kept = {}
        for name in NETWORKS:
            weights, right = train(name)
            print(f"{name}: {right:.1%} of what was held out", flush=True)  # noqa: T201
            kept |= {f"{name}/{key}": w.half() if w.is_floating_point() else w for key, w in weights.items()}
        save_file(kept, WEIGHTS)
        return
    with TABLE.open("w", newline="") as file:
        write = csv.writer(file, lineterminator="\n").writerow
        write(Row.__dataclass_fields__)
        for name in NETWORKS:
            for row in measure(name, SAMPLES):
                write([row.network, row.module, *(f"{x:.3f}" for x in (row.ratio, row.mean_error, row.plain_error))])
            file.flush()


if __name__ == "__main__":
    main()
