"""Small models of text and image tokens that start from a BERT: one stream for both, or experts for each."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.models.transformer import encoder
from experiments.models.weights import fill, load_tensors, seeded

PRETRAINED = "fusion.safetensors"
"""Beside a BERT: all weights of a model of text and image tokens that starts from it."""


class SingleStream(nn.Module):
    """Words and image tokens one after the other through all blocks of a BERT, as in ViLT; a head on the first word.

    Image tokens [N, tokens, features] are mapped to the width of the words, with positions and a type of their own.
    ``mask`` [N, 1, 1, words + tokens] is true where there is something.
    """

    def __init__(self, bert: Any, *, features: int, tokens: int, classes: int) -> None:
        super().__init__()
        self.words: Any = bert.embeddings
        self.layers: Any = bert.encoder.layer
        width = bert.config.hidden_size
        self.project, self.norm = nn.Linear(features, width), nn.LayerNorm(width)
        self.position = nn.Parameter(torch.randn(1, tokens, width) * bert.config.initializer_range)
        hidden = nn.Linear(width, 2 * width), nn.LayerNorm(2 * width), nn.GELU()
        last = nn.Linear(2 * width, classes)
        nn.init.constant_(last.bias, -math.log(classes))  # of many answers, each is improbable
        self.head = nn.Sequential(*hidden, last)

    def forward(self, input_ids: Tensor, image: Tensor, mask: Tensor) -> Tensor:
        words = self.words(input_ids)
        x = torch.cat([words, self.norm(self.project(image) + self.position)], 1)
        for index, layer in enumerate(self.layers):
            x = layer.attention(x, mask)[0]
            x = self.feed(index, layer, x, words.shape[1])
        return self.head(x[:, 0])

    def feed(self, index: int, layer: Any, x: Tensor, words: int) -> Tensor:
        """The part of a block that looks at each token by itself."""
        return layer.output(layer.intermediate(x), x)


class Multiway(SingleStream):
    """The same with two such parts in each block, one for words and one for image tokens, as in BEiT-3.

    Attention is shared. The experts for images start as copies of those for words.
    """

    def __init__(self, bert: Any, **sizes: int) -> None:
        super().__init__(bert, **sizes)
        experts = ([copy.deepcopy(part) for part in (layer.intermediate, layer.output)] for layer in self.layers)
        self.experts: Any = nn.ModuleList(nn.ModuleList(pair) for pair in experts)

    def feed(self, index: int, layer: Any, x: Tensor, words: int) -> Tensor:
        text, image = x[:, :words], x[:, words:]
        intermediate, output = self.experts[index]
        return torch.cat([super().feed(index, layer, text, words), output(intermediate(image), image)], 1)


def fusion(kind: type[SingleStream], folder: Path, seed: int, **sizes: int) -> nn.Module:
    """In eval mode, with the words and blocks of the BERT in ``folder``; all else is drawn from ``seed``."""
    return seeded(seed, kind, encoder(folder), **sizes)


def pretrained_fusion(kind: type[SingleStream], folder: Path, **sizes: int) -> nn.Module:
    """In eval mode, with the weights in ``folder``, head and all."""
    model, path = fusion(kind, folder, 0, **sizes), folder / PRETRAINED
    fill(model, load_tensors(path), str(path))
    return model


def masked(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The mask of words and image tokens as attention takes it, and image tokens in float32."""
    words, image = batch["attention_mask"].bool(), batch["image"].float()
    there = batch.get("present", words.new_ones(image.shape[:2])).bool()
    return {"input_ids": batch["input_ids"], "image": image, "mask": torch.cat([words, there], 1)[:, None, None, :]}
