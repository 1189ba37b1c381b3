"""ViT-B/16 of Hugging Face, from a checkpoint or fresh."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from torch import nn

from experiments.faults import DataError
from experiments.models.transformer import NO_DROPOUT, classifier, library, settings_of

BASE: Mapping[str, int] = MappingProxyType(
    {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "image_size": 224,
        "patch_size": 16,
    }
)
"""The sizes of ViT-B/16."""


def vit_base(
    checkpoint: str | os.PathLike[str] | None, classes: int = 100, seed: int = 0, sizes: Mapping[str, int] = BASE
) -> nn.Module:
    """A ``ViTForImageClassification`` in eval mode, without dropout, for images prepared by ``VIT``.

    ``checkpoint`` is a folder of transformers with safetensors; its head is replaced by one drawn from ``seed``.
    With None everything is drawn from ``seed``. ``sizes`` are those the checkpoint must have.
    """
    if checkpoint is None:
        config = library().ViTConfig(**sizes, num_labels=classes, **NO_DROPOUT)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return library().ViTForImageClassification(config).eval()
    folder = Path(checkpoint)
    # A configuration names only what differs from the defaults, which are those of ViT-B/16.
    found = {**BASE, **settings_of(folder, "vit")}
    wrong = [f"{name} is {found[name]} and should be {size}" for name, size in sizes.items() if found[name] != size]
    if wrong:
        raise DataError(f"{folder} holds another architecture than asked for: {', '.join(wrong)}")
    return classifier(folder, library().ViTForImageClassification, classes, seed, fresh=())
