"""NLVR2 with BEiT-3 base of 225.7 million weights, fine-tuned from a pretrained checkpoint."""

from __future__ import annotations

import functools
from dataclasses import replace

from experiments.data.examples import Examples
from experiments.data.image_files import square_files
from experiments.data.nlvr2 import TRUTH, Statements, nlvr2
from experiments.experiment import Experiment, ReadSplits, Sources, Splits, same_for_every_seed
from experiments.models.beit3 import LENGTH, Beit3ForPairs, beit3, padded
from experiments.models.transformer import tokenize
from experiments.rows import vqav2_rows
from experiments.rows.starting_points import from_weights

NAME = "nlvr2-beit3"
WANTED = vqav2_rows.WANTED[vqav2_rows.BEIT3]
SIDE = 224

RECIPE = replace(
    vqav2_rows.BEIT3_RECIPE,
    model={"classes": 2, "img_size": SIDE},
    ivon={"lr": 100.0, "ess": 1e8, "hess_init": 5e-4, "beta2": 0.9999, "weight_decay": 1e-5, "clip_radius": 1e-3},
)


def splits(side: int) -> ReadSplits:
    """Trained on the training statements, held out the dev ones, tested those of test-P."""

    @same_for_every_seed
    def load(sources: Sources) -> Splits:
        folder = sources.trained_weights(NAME, WANTED)

        def examples(part: Statements) -> Examples:
            tokens = padded(tokenize(folder, part.texts, LENGTH), "text")
            first, second = ([pair[i] for pair in part.paths] for i in (0, 1))
            images = {"image_a": square_files(first, side), "image_b": square_files(second, side)}
            return Examples({**tokens, **images}, part.labels)

        data = nlvr2(sources.data)
        return Splits(examples(data.train), examples(data.dev), examples(data.test), TRUTH, tuple(data.test.texts))

    return load


NLVR2_BEIT3 = Experiment(
    name=NAME,
    title="NLVR2 (BEiT-3-base)",
    about="BEiT-3 base fine-tuned on 86,373 statements about pairs of photos; the 6,982 of dev are held out.",
    paper="NLVR2 (BEiT-3-base)",
    splits=splits(SIDE),
    from_weights=True,
    model=from_weights(NAME, WANTED, functools.partial(beit3, Beit3ForPairs)),
    recipe=RECIPE,
    prepare=vqav2_rows.prepare_beit3,
    evaluation_batch=64,
)
