"""A small vision transformer and a small convolutional network."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Attention and MLP, each after a norm and added to what came in."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Patches, learned positions, blocks, and a linear head on the mean token."""

    def __init__(
        self,
        *,
        channels: int,
        side: int,
        classes: int,
        patch: int,
        stride: int | None = None,
        padding: int = 0,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        position: float = 0.5,
    ) -> None:
        super().__init__()
        self.patch, self.stride, self.padding = patch, stride or patch, padding
        tokens = ((side + 2 * padding - patch) // self.stride + 1) ** 2
        # A linear map of patches: as a convolution, several networks side by side would be a slow one in groups.
        self.patches = nn.Linear(channels * patch * patch, width)
        self.position = nn.Parameter(torch.randn(1, tokens, width) * position)
        self.blocks = nn.Sequential(*(Block(width, heads, 4 * width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        padded = F.pad(images, (self.padding,) * 4) if self.padding else images
        cut = padded.unfold(2, self.patch, self.stride).unfold(3, self.patch, self.stride)
        tokens = self.patches(cut.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)) + self.position
        return self.head(self.norm(self.blocks(tokens)).mean(1))


class CNN(nn.Module):
    """Two convolutions, each with a ReLU and a maximum over 2 × 2, and two linear layers."""

    def __init__(self, *, channels: int, side: int, classes: int, width: int = 32, hidden: int = 128) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.hidden = nn.Linear(2 * width * (side // 4) ** 2, hidden)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(hidden, classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.hidden(self.features(images).flatten(1)))
