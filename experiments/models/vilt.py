"""ViLT of transformers, with images as a fixed grid of patches in the place of a random choice of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.exceptions import DataError
from experiments.models.transformer import classifier, library

LENGTH = 40
"""Tokens of a question, as many as ViLT has positions for: what is longer is cut."""


def vilt_for_questions(checkpoint: Path, classes: int, seed: int = 0) -> nn.Module:
    """A ``ViltForQuestionAnswering`` in eval mode, without dropout, with a head drawn from ``seed``."""
    return with_fixed_patches(
        classifier(checkpoint, "vilt", "ViltForQuestionAnswering", classes, seed, fresh=("pooler",))
    )


def with_fixed_patches(model: nn.Module) -> nn.Module:
    """The same function of text, images and masks, computed by the same operations whatever the masks hold.

    The original takes the patches of each image that its mask shows, in random order, fills up with masked ones to the
    largest image of the batch, and resizes the position table for each image in a loop. Attention does not depend on
    the order of its tokens or on masked ones, so all patches may stay where they are, masked; and resizing is linear:
    R_h P R_wᵀ, with matrices that are functions of the image's height and width. Outputs are the same but for
    rounding. What is given up: ``max_image_length``, which throws patches away at random, is refused.
    """
    embeddings: Any = model.get_submodule("vilt.embeddings")
    limit = embeddings.config.max_image_length
    if isinstance(limit, int) and limit >= 0:
        raise DataError(f"this ViLT keeps {limit} random patches of an image (max_image_length): set it to -1")
    embeddings.__class__ = _fixed_patches()  # with all its weights, as torch's parametrizations do it
    return model


def resizing(used: Tensor, size: int, patches: int) -> Tensor:
    """R [N, size, patches]: ``used`` [N] points, evenly spread over a table of ``patches``, and zeros after them.

    Point i lies at i (patches − 1)/(used − 1), between two entries, which it takes in proportion: bilinear
    interpolation with aligned corners.
    """
    i = torch.arange(size, device=used.device)
    place = i * (patches - 1) / (used[:, None] - 1).clamp(min=1)
    weight = F.relu(1 - (place[..., None] - torch.arange(patches, device=used.device)).abs())
    return weight * (i < used[:, None])[..., None]


def _fixed_patches() -> Any:
    """A class below one of transformers, which is imported when it is needed."""
    embeddings = library().models.vilt.modeling_vilt.ViltEmbeddings

    class FixedPatches(embeddings):  # type: ignore[misc,valid-type]
        """The embeddings of ViLT for images whose patches all stay."""

        def visual_embed(self, pixel_values: Tensor, pixel_mask: Tensor, max_image_length: int = -1) -> Any:
            x = self.patch_embeddings(pixel_values)
            batch, width, *grid = x.shape
            mask = F.interpolate(pixel_mask[:, None].float(), size=grid)[:, 0]
            side = self.config.image_size // self.config.patch_size
            table = self.position_embeddings[0, 1:].T.reshape(width, side, side)
            rows = resizing(mask[:, :, 0].sum(1), grid[0], side)[:, None]
            columns = resizing(mask[:, 0, :].sum(1), grid[1], side)[:, None]
            position = (rows @ table @ columns.transpose(-1, -2)).flatten(2).transpose(1, 2)
            first = (self.cls_token + self.position_embeddings[:, :1]).expand(batch, -1, -1)
            tokens = torch.cat([first, x.flatten(2).transpose(1, 2) + position], 1)
            seen = torch.cat([mask.new_ones(batch, 1), mask.flatten(1)], 1)
            return self.dropout(tokens), seen.long(), None

        def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            embeddings, mask = super().forward(*args, **kwargs)
            # As it is added to the scores: the model would look into one of two dimensions, whether anything is masked.
            hidden = torch.zeros_like(mask, dtype=embeddings.dtype)
            return embeddings, hidden.masked_fill(mask == 0, torch.finfo(hidden.dtype).min)[:, None, None, :]

    return FixedPatches
