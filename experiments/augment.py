"""Random changes of training images, drawn for a whole epoch at once and applied on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

Draws = dict[str, Tensor]


@dataclass(frozen=True)
class Augment:
    """Which changes, and how large. The default changes nothing."""

    pad: int = 0
    """Images are moved by up to this many pixels; what comes in is black."""
    flip: bool = False
    jitter: float = 0.0
    """Brightness, contrast and saturation are multiplied by 1 ± up to this."""
    erase: int = 0
    """Side of a square that is made grey, anywhere in the image."""

    def draw(self, count: int, generator: torch.Generator) -> Draws:
        """The changes of ``count`` images."""
        shift = torch.randint(-self.pad, self.pad + 1, (count, 2), generator=generator)
        flip = torch.rand(count, generator=generator) < (0.5 if self.flip else 0.0)
        colour = 1 + self.jitter * (2 * torch.rand(count, 3, generator=generator) - 1)
        corner = torch.rand(count, 2, generator=generator)
        return {
            "shift": shift,
            "flip": flip,
            "colour": colour,
            "corner": corner,
            "side": torch.full((count,), self.erase),
        }


UNCHANGED = Augment()


def apply(images: Tensor, draws: Draws) -> Tensor:
    """The changed images [N, C, H, W], as floats from 0 to 255."""
    return _erased(_coloured(_moved(images, draws), draws["colour"]), draws)


def _moved(images: Tensor, draws: Draws) -> Tensor:
    count, channels, height, width = images.shape
    y = torch.arange(height, device=images.device) + draws["shift"][:, :1]
    x = torch.arange(width, device=images.device)
    x = torch.where(draws["flip"][:, None], width - 1 - x, x) + draws["shift"][:, 1:]
    inside = ((y >= 0) & (y < height))[:, :, None] & ((x >= 0) & (x < width))[:, None, :]
    index = (
        torch.arange(count, device=images.device)[:, None, None, None],
        torch.arange(channels, device=images.device)[None, :, None, None],
        y.clamp(0, height - 1)[:, None, :, None],
        x.clamp(0, width - 1)[:, None, None, :],
    )
    return images[index].float() * inside[:, None]


def _coloured(images: Tensor, factors: Tensor) -> Tensor:
    """Brightness, then contrast about the mean of the image, then saturation about each pixel's grey."""
    brightness, contrast, saturation = (f[:, None, None, None] for f in factors.unbind(1))
    images = images * brightness
    centre = images.mean((1, 2, 3), keepdim=True)
    images = centre + (images - centre) * contrast
    grey = images.mean(1, keepdim=True)
    return (grey + (images - grey) * saturation).clamp(0, 255)


def _erased(images: Tensor, draws: Draws) -> Tensor:
    """The square's centre is anywhere, so that a part of it may lie outside."""
    hits = []
    for size, along in zip(images.shape[2:], draws["corner"].unbind(1), strict=True):
        start = (along * size).long() - draws["side"] // 2
        at = torch.arange(size, device=images.device)
        hits.append((at >= start[:, None]) & (at < (start + draws["side"])[:, None]))
    rows, columns = hits
    return torch.where((rows[:, :, None] & columns[:, None, :])[:, None], 127.5, images)
