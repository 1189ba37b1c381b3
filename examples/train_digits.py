"""Train a small vision transformer on handwritten digits with IVON: a mean and a variance for every weight.

Takes under a minute on two cores. Only the sampling block differs from an ordinary training loop.
"""

from __future__ import annotations

import math
import time

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import varprop as vp
from varprop.optim import IVON


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """8×8 images in overlapping 4×4 patches: 16 tokens."""

    def __init__(self, width: int = 64, depth: int = 2, heads: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, stride=2, padding=1)
        self.position = nn.Parameter(torch.randn(1, 16, width) * 0.5)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.blocks(tokens)).mean(1))


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """1,437 images to train on and 360 to test on."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    labels = torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:1437], order[1437:]
    return images[train], labels[train], images[test], labels[test]


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


SETTINGS = {"lr": 1.0, "ess": 3e5, "hess_init": 0.1, "beta2": 0.9995, "weight_decay": 1e-4, "clip_radius": 0.05}


def train(
    model: nn.Module, images: Tensor, labels: Tensor, epochs: int = 20, batch: int = 32, **changed: float
) -> IVON:
    optimizer = IVON(model.parameters(), **(SETTINGS | changed))
    steps = epochs * math.ceil(len(labels) / batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, SETTINGS["lr"], steps, cycle_momentum=False)
    for _ in range(epochs):
        for chosen in torch.randperm(len(labels)).split(batch):
            optimizer.zero_grad()
            with optimizer.sampled_params(train=True):  # gradients at weights drawn from the posterior
                nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return optimizer


def main() -> None:
    torch.set_num_threads(1)  # the network is too small to gain from more
    torch.manual_seed(0)
    images, labels, test_images, test_labels = digits()
    model = ViT()
    start = time.perf_counter()
    optimizer = train(model, images, labels)
    took = time.perf_counter() - start
    print(f"test accuracy {100 * accuracy(model, test_images, test_labels):.1f} % after {took:.0f} s")
    posterior = vp.Posterior.from_ivon(model, optimizer)
    initial = 1 / (SETTINGS["ess"] * (SETTINGS["hess_init"] + SETTINGS["weight_decay"]))
    print(f"standard deviations of the weights; all began at {initial**0.5:.4f}:")
    for name in posterior:
        low, high = posterior[name].std.quantile(torch.tensor([0.05, 0.95])).tolist()
        print(f"  {name:<22} {low:.4f} to {high:.4f}")


if __name__ == "__main__":
    main()
