"""Tokens of images from a frozen ResNet-50: the grid before its pooling, in few dimensions, kept in a file."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from experiments.exceptions import DataError
from experiments.models.keras import keras_resnet50
from experiments.models.prepare import CAFFE

DIMENSIONS = 256
_BATCH = 16


def grids(weights: Path, images: Tensor, device: str = "cpu") -> Iterator[Tensor]:
    """Of each image [3, H, W], bytes: the [H/32 · W/32, 2048] positions of the last stage, batch by batch."""
    network = keras_resnet50(weights).to(device)
    for start in tqdm(range(0, len(images), _BATCH), desc="features", disable=None, leave=False):
        yield network.grid(CAFFE(images[start : start + _BATCH].to(device))).flatten(2).transpose(1, 2)


@torch.no_grad()
def image_tokens(
    weights: Path, images: Tensor, fitted: Tensor, dimensions: int = DIMENSIONS, device: str = "cpu"
) -> Tensor:
    """[N, positions, dimensions] in float16: principal components, of the ``fitted`` rows alone, with variance 1."""
    found = torch.cat([grid.half().cpu() for grid in grids(weights, images, device)])
    some = found[fitted].flatten(0, 1).float()
    centre = some.mean(0)
    covariance = torch.cov((some - centre).T)
    values, vectors = torch.linalg.eigh(covariance)
    chosen = vectors[:, -dimensions:].flip(1) * values[-dimensions:].flip(0).clamp(min=1e-6).rsqrt()
    return torch.cat([((part.float() - centre) @ chosen).half() for part in found.split(64)])


def save_tokens(path: Path, tokens: Tensor) -> None:
    np.savez(path, tokens=tokens.numpy())


def load_tokens(path: Path, images: int) -> Tensor:
    """What ``save_tokens`` wrote for this many images."""
    try:
        with np.load(path, allow_pickle=False) as file:
            found = torch.from_numpy(file["tokens"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} holds no image tokens: {error}; make it with python -m experiments features") from None
    if found.ndim != 3 or len(found) != images:
        raise DataError(f"{path} holds {list(found.shape)} tokens for {images} images; make it again")
    return found
