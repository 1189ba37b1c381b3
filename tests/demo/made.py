"""A data set and a recipe so small that the whole demo takes seconds."""

import torch

from varprop.data import Images, Split
from varprop.demo.recipes import Recipe

RECIPE = Recipe(
    model={"channels": 1, "tokens": 4, "patch": 4, "stride": 4, "width": 8, "depth": 1, "heads": 2},
    train=64,
    held_out=180,
    test=48,
    epochs=3,
    batch=16,
    ivon={"lr": 0.5, "ess": 1e3, "hess_init": 0.1, "weight_decay": 1e-4, "clip_radius": 0.05},
    calibration={"batch_size": 90, "epochs": 2, "lr": 0.1},
)


def images(name="made"):
    """Bright squares in one of three corners, in noise."""
    rng = torch.Generator().manual_seed(0)

    def split(count):
        labels = torch.randint(0, 3, (count,), generator=rng)
        pixels = 60 * torch.rand(count, 1, 8, 8, generator=rng)
        for label, (y, x) in enumerate(((0, 0), (0, 4), (4, 0))):
            pixels[labels == label, :, y : y + 4, x : x + 4] += 40
        return Split(pixels.to(torch.uint8), labels)

    return Images(name, split(260), split(60), ("left", "right", "below"))
