"""NLVR2 with BEiT-3 base of 225.7 million weights, fine-tuned from a pretrained checkpoint."""

from __future__ import annotations

import functools
from dataclasses import replace

from torch import nn

from experiments.data.illustrated import Illustrated, Squares
from experiments.data.nlvr2 import TRUTH, Stated, nlvr2
from experiments.experiment import Experiment, Sources, Splits
from experiments.models.beit3 import LENGTH, Beit3ForPairs, beit3, padded
from experiments.models.transformer import tokenize
from experiments.recipes import Recipe
from experiments.rows import vqav2_beit3
from experiments.rows.pretrained import weights_of

NAME = "nlvr2-beit3"
WANTED = vqav2_beit3.WANTED
SIDE = 224

RECIPE = replace(
    vqav2_beit3.RECIPE,
    model={"classes": 2, "img_size": SIDE},
    ivon={"lr": 100.0, "ess": 1e8, "hess_init": 5e-4, "beta2": 0.9999, "weight_decay": 1e-5, "clip_radius": 1e-3},
)


@functools.lru_cache(maxsize=1)
def _load(sources: Sources, side: int) -> Splits:
    folder = weights_of(sources, NAME, WANTED)
    view = Squares(("image_a", "image_b"), side)

    def examples(part: Stated) -> Illustrated:
        return Illustrated(padded(tokenize(folder, part.texts, LENGTH), "text"), part.paths, view, part.labels)

    data = nlvr2(sources.data)
    return Splits(examples(data.train), examples(data.dev), examples(data.test), TRUTH, tuple(data.test.texts))


def splits(sources: Sources, _: int, side: int = SIDE) -> Splits:
    """Trained on the training statements, held out the dev ones, tested those of test-P."""
    return _load(sources, side)


def start(recipe: Recipe, sources: Sources, seed: int) -> nn.Module:
    """The checkpoint with a head drawn from the seed."""
    return beit3(Beit3ForPairs, weights_of(sources, NAME, WANTED), seed, **recipe.model)


NLVR2_BEIT3 = Experiment(
    name=NAME,
    title="NLVR2 (BEiT-3-base)",
    about="BEiT-3 base fine-tuned on 86,373 statements about pairs of photos; the 6,982 of dev are held out.",
    paper="NLVR2 (BEiT-3-base)",
    splits=splits,
    model=start,
    recipe=RECIPE,
    prepare=vqav2_beit3.prepare,
    evaluation_batch=64,
)
