"""BEiT-3 base of torchscale, with the heads for questions about an image and for statements about a pair of them.

Modules are named as in the official code (unilm/beit3), so that its checkpoints fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.exceptions import DataError, ExperimentError
from experiments.models.weights import Tensors, fill, load_tensors, seeded

LENGTH = 64
"""Tokens of a question or statement with the two at its ends, as in the official recipes: what is longer is cut."""
BASE: Mapping[str, int] = MappingProxyType(
    {
        "img_size": 224,
        "patch_size": 16,
        "vocab_size": 64010,
        "encoder_embed_dim": 768,
        "encoder_attention_heads": 12,
        "encoder_ffn_embed_dim": 3072,
        "encoder_layers": 12,
    }
)
_POSITIONS = "beit3.encoder.embed_positions.A.weight"
_BEFORE_PATCHES = 3  # two unused positions, as in fairseq, and that of the class token
_EPS = 1e-6


class Pooler(nn.Module):
    """tanh of a linear map of the normalised first token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.dense = nn.LayerNorm(width, _EPS), nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.dense(self.norm(tokens[:, 0])).tanh()


class TwoLayers(nn.Module):
    """Linear, norm, GELU, linear."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.dense1, self.norm2 = nn.Linear(inputs, hidden), nn.LayerNorm(hidden, _EPS)
        self.act, self.dense2 = nn.GELU(), nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense2(self.act(self.norm2(self.dense1(x))))


class Beit3ForQuestions(nn.Module):
    """Logits of answers to a question about an image; ``padding_mask`` is 1 where the question has ended."""

    def __init__(self, classes: int = 3129, **sizes: int) -> None:
        super().__init__()
        self.beit3, width = _encoder(sizes)
        self.pooler = Pooler(width)
        layers = nn.Linear(width, 2 * width), nn.LayerNorm(2 * width, _EPS), nn.GELU(), nn.Linear(2 * width, classes)
        self.head = nn.Sequential(*layers)

    def forward(self, image: Tensor, question: Tensor, padding_mask: Tensor) -> Tensor:
        found = self.beit3(textual_tokens=question, visual_tokens=image, text_padding_position=padding_mask.bool())
        return self.head(self.pooler(found["encoder_out"]))


class Beit3ForPairs(nn.Module):
    """Logits of false and true for a statement about two images, each of which goes through with the text."""

    def __init__(self, classes: int = 2, **sizes: int) -> None:
        super().__init__()
        self.beit3, width = _encoder(sizes)
        self.head = TwoLayers(4 * width, 2 * width, classes)

    def forward(self, image_a: Tensor, image_b: Tensor, text: Tensor, padding_mask: Tensor) -> Tensor:
        images, twice, ended = (torch.cat(both) for both in ((image_a, image_b), (text,) * 2, (padding_mask,) * 2))
        found = self.beit3(textual_tokens=twice, visual_tokens=images, text_padding_position=ended.bool())
        tokens, start = found["encoder_out"], found["multiway_split_position"]
        pair = torch.cat([tokens[:, 0], tokens[:, start]], -1).chunk(2)
        return self.head(torch.cat(pair, -1))


def _encoder(sizes: Mapping[str, int]) -> tuple[nn.Module, int]:
    try:
        from torchscale.architecture.config import EncoderConfig  # type: ignore[import-untyped]
        from torchscale.model.BEiT3 import BEiT3  # type: ignore[import-untyped]
    except ImportError as error:
        raise ExperimentError(
            f"BEiT-3 is built from torchscale, which cannot be imported ({error}): pip install torchscale, or, where "
            "its pins are too old, pip install --no-deps torchscale fairscale timm"
        ) from error
    chosen = {**BASE, **sizes}
    return BEiT3(EncoderConfig(multiway=True, no_output_layer=True, **chosen)), chosen["encoder_embed_dim"]


def beit3(kind: type[Beit3ForQuestions | Beit3ForPairs], checkpoint: Path, seed: int = 0, **options: Any) -> nn.Module:
    """A model in eval mode; the encoder from a checkpoint, the head drawn from ``seed``.

    ``checkpoint`` is a .pth of the official code or a .safetensors, or a folder with one. Image positions of another
    size are resized.
    """
    model = seeded(seed, kind, **options)
    path = _file(checkpoint)
    found = {name: tensor for name, tensor in load_tensors(path).items() if name.startswith("beit3.")}
    own = model.state_dict()
    if _POSITIONS in found:
        found[_POSITIONS] = _resized(found[_POSITIONS], len(own[_POSITIONS]), path)
    fill(model, {**{name: tensor for name, tensor in own.items() if name not in found}, **found}, str(path))
    lacking = [name for name in own if name.startswith("beit3.") and name not in found]
    if lacking:
        raise DataError(f"{path} lacks {lacking[0]} and {len(lacking) - 1} more: it is no checkpoint of this BEiT-3")
    return model


def _file(place: Path) -> Path:
    """The checkpoint itself, or the only one in a folder."""
    if place.is_file():
        return place
    files = sorted(file for file in place.iterdir() if file.suffix in (".pth", ".pt", ".safetensors"))
    if len(files) != 1:
        there = ", ".join(file.name for file in files) or "none"
        raise DataError(f"{place} should hold one checkpoint of BEiT-3 (.pth or .safetensors), and holds {there}")
    return files[0]


def _resized(table: Tensor, rows: int, path: Path) -> Tensor:
    """Positions of a square of patches, resized to another one (bicubic), as the official code does."""
    if len(table) == rows:
        return table
    before, patches = table[:_BEFORE_PATCHES], table[_BEFORE_PATCHES:]
    side, wanted = math.isqrt(len(patches)), math.isqrt(rows - _BEFORE_PATCHES)
    if side**2 != len(patches) or wanted**2 != rows - _BEFORE_PATCHES:
        raise DataError(f"{path} has positions for {len(patches)} patches, which are no square")
    square = patches.float().T.reshape(1, -1, side, side)
    resized = F.interpolate(square, (wanted, wanted), mode="bicubic", align_corners=False)
    return torch.cat([before.float(), resized.flatten(2)[0].T])


def padded(tokens: Mapping[str, Tensor], name: str) -> Tensors:
    """What a tokenizer gives, under the names of these models: the ids, and where they have ended."""
    return {name: tokens["input_ids"], "padding_mask": 1 - tokens["attention_mask"]}
