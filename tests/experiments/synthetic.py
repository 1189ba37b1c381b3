"""An experiment so small that the whole of it takes seconds."""

import torch

from experiments.data.examples import Examples, ImageSet, hold_out
from experiments.experiment import METHODS, Experiment, Splits
from experiments.recipes import AdamWRecipe, Recipe
from experiments.rows.starting_points import centred, vit
from varprop.evaluation.methods import listed

RECIPE = Recipe(
    model={"channels": 1, "side": 8, "classes": 3, "patch": 4, "width": 8, "depth": 1, "heads": 2},
    epochs=3,
    batch=16,
    ivon={"lr": 0.5, "ess": 1e3, "hess_init": 0.1, "weight_decay": 1e-4, "clip_radius": 0.05},
    calibration={"batch_size": 90, "epochs": 2, "lr": 0.1},
)
ADAMW = AdamWRecipe(
    model=RECIPE.model, epochs=3, batch=16, adamw={"lr": 0.01, "weight_decay": 0.05}, calibration=RECIPE.calibration
)
FEW = tuple(listed("mean,mc-2,temperature"))
"""Methods that need no capture, which takes longest."""


def images():
    """Bright squares in one of three corners, in noise."""
    rng = torch.Generator().manual_seed(0)

    def split(count):
        labels = torch.randint(0, 3, (count,), generator=rng)
        pixels = 60 * torch.rand(count, 1, 8, 8, generator=rng)
        for label, (y, x) in enumerate(((0, 0), (0, 4), (4, 0))):
            pixels[labels == label, :, y : y + 4, x : x + 4] += 40
        return Examples(pixels.to(torch.uint8), labels)

    return ImageSet(split(250), split(48), ("left", "right", "below"))


def splits(sources=None, seed=0):
    """70 to train on, so that some are left over in each epoch."""
    found = images()
    return Splits(*hold_out(found.train, 180), found.test, found.classes)


def experiment(recipe=RECIPE, methods=FEW, **changes):
    what = {
        "name": "squares",
        "title": "Squares (tiny ViT)",
        "about": "Squares in noise.",
        "splits": splits,
        "model": vit,
    }
    return Experiment(**{**what, "prepare": centred, **changes}, recipe=recipe, methods=methods)


def every_method():
    return experiment(methods=METHODS)
