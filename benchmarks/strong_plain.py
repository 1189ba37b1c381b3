"""Plain models as someone would write them who cares for speed alone: the denominator of honest ratios.

Queries, keys and values in one product, fused attention without a mask, patches by a linear layer. Sizes are those of
the models they stand for, weights are random: speed does not depend on them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """A layer of a Transformer encoder, its norms before (ViT) or after (BERT) the residual sums."""

    def __init__(self, width: int, heads: int, inner: int, *, norm_first: bool) -> None:
        super().__init__()
        self.heads, self.norm_first = heads, norm_first
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def attend(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(*parts.unbind(0)).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        if self.norm_first:
            x = x + self.attend(self.first(x))
            return x + self.down(F.gelu(self.up(self.second(x))))
        x = self.first(x + self.attend(x))
        return self.second(x + self.down(F.gelu(self.up(x))))


def blocks(config: Any, *, norm_first: bool) -> nn.Sequential:
    sizes = config.hidden_size, config.num_attention_heads, config.intermediate_size
    return nn.Sequential(*(Block(*sizes, norm_first=norm_first) for _ in range(config.num_hidden_layers)))


class StrongViT(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.patch, width = config.patch_size, config.hidden_size
        self.embed = nn.Linear(3 * self.patch**2, width)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 1 + (config.image_size // self.patch) ** 2, width))
        self.blocks, self.norm = blocks(config, norm_first=True), nn.LayerNorm(width)
        self.head = nn.Linear(width, config.num_labels)

    def forward(self, pixel_values: Tensor) -> Tensor:
        p = self.patch
        patches = pixel_values.unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        x = torch.cat([self.token.expand(patches.shape[0], -1, -1), self.embed(patches)], 1) + self.position
        return self.head(self.norm(self.blocks(x)[:, 0]))


class StrongBert(nn.Module):
    """Without padding."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.hidden_size
        self.words = nn.Embedding(config.vocab_size, width)
        self.position = nn.Embedding(config.max_position_embeddings, width)
        self.norm, self.blocks = nn.LayerNorm(width), blocks(config, norm_first=False)
        self.pool, self.head = nn.Linear(width, width), nn.Linear(width, config.num_labels)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.norm(self.words(input_ids) + self.position.weight[: input_ids.shape[1]])
        return self.head(torch.tanh(self.pool(self.blocks(x)[:, 0])))
