"""NLVR with a small multiway model of words and shapes: it stands in for NLVR2 with BEiT-3."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from experiments.data.in_memory import Columns
from experiments.data.labelled import in_some_groups
from experiments.data.nlvr import BOXES, FEATURES, MOST, ORDERS, Scenes, nlvr, shape_tokens
from experiments.experiment import Experiment, Sources, Splits
from experiments.models.fusion import Multiway, masked
from experiments.models.transformer import tokenize
from experiments.rows import daquar_fusion
from experiments.rows.daquar_fusion import WANTED, start
from experiments.rows.pretrained import weights_of
from varprop.prediction.links import Sigmoid

NAME = "nlvr-multiway"
LENGTH = 48
HELD_OUT = 0.2
"""Of the sentences of dev and hidden."""

PLAIN = replace(
    daquar_fusion.PLAIN,
    model={"features": FEATURES, "tokens": BOXES * MOST, "classes": 1},
    calibration={"epochs": 100},  # 200 steps of the 400 held-out statements
)
CANDIDATES = {
    "plain": PLAIN,
    "slow": replace(PLAIN, ivon={**PLAIN.ivon, "lr": 2.0}),
    "narrow": replace(PLAIN, ivon={**PLAIN.ivon, "ess": 6e6}),
    "long": replace(PLAIN, epochs=30),
}


@functools.lru_cache(maxsize=1)
def _load(sources: Sources) -> Splits:
    folder = weights_of(sources, NAME, WANTED)
    data = nlvr(sources.data)

    def examples(scenes: Scenes, orders: tuple[tuple[int, ...], ...] = ORDERS[:1]) -> Columns:
        words = tokenize(folder, scenes.texts, LENGTH)
        shapes = [shape_tokens(scenes.boxes, order) for order in orders]
        image, present = (torch.cat(parts) for parts in zip(*shapes, strict=True))
        repeated = {name: x.repeat(len(orders), 1) for name, x in words.items()}
        return Columns({**repeated, "image": image, "present": present}, scenes.truth.repeat(len(orders))[:, None])

    known = data["dev"] + data["hidden"]
    held = in_some_groups(known.groups, HELD_OUT)
    train, held_out = known.take(~held), known.take(held)
    return Splits(
        examples(train, ORDERS),
        examples(held_out),
        examples(data["test"]),
        ("false", "true"),
        tuple(data["test"].texts),
    )


def splits(sources: Sources, _: int) -> Splits:
    """Trained on dev and hidden, in all six orders of the boxes, without a fifth of their sentences; test is tested."""
    return _load(sources)


NLVR_MULTIWAY = Experiment(
    name=NAME,
    title="NLVR (multiway)",
    about=(
        "MiniLM's blocks with experts for words and for the shapes of a scene, fine-tuned on 1,580 statements in six "
        "orders of their boxes; 390 are held out, 990 tested. Votes of annotators are soft labels."
    ),
    paper="NLVR2 (BEiT-3-base)",
    stand_in=True,
    splits=splits,
    model=start(Multiway, NAME),
    recipe=PLAIN,
    prepare=masked,
    link=Sigmoid(),
    side_by_side=3,
    candidates=CANDIDATES,
)
