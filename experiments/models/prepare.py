"""Images as bytes to what a network was trained on."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from varprop.errors import InputError


@dataclass(frozen=True)
class Normalize:
    """(bytes − mean)/std for each channel, of images resized to ``size`` × ``size`` where one is given.

    Called on RGB images [N, 3, H, W], bytes or floats from 0 to 255; works where they are, so images may be moved to a
    device while they are small.
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    size: int | None = None

    def __call__(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1] != 3:
            raise InputError(f"images are [N, 3, H, W], from 0 to 255, not {list(images.shape)}")
        x = images.float()
        if self.size is not None and x.shape[-2:] != (self.size, self.size):
            x = nn.functional.interpolate(x, (self.size, self.size), mode="bilinear", antialias=True)
        mean, std = (x.new_tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
        return (x - mean) / std


CAFFE = Normalize(mean=(123.68, 116.779, 103.939), std=(1.0, 1.0, 1.0))
"""Of Keras's ResNet-50: only centred."""
IMAGENET = Normalize(mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375))
"""Of networks trained with torchvision's recipes."""
VIT = Normalize(mean=(127.5,) * 3, std=(127.5,) * 3, size=224)
"""Of ViT-B/16: −1 to 1, whatever the size of the image."""
