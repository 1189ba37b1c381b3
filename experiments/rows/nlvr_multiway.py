"""NLVR with a small multiway model of words and shapes: it stands in for NLVR2 with BEiT-3."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch

from experiments.data.in_memory import Columns
from experiments.data.labelled import in_some_groups
from experiments.data.nlvr import BOXES, FEATURES, MOST, ORDERS, Scenes, nlvr, rearranged, recoloured, shape_tokens
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
    epochs=6,
    batch=128,
    calibration={"epochs": 100, "micro_batch": 128},  # 200 steps of the 400 held-out statements
)
CANDIDATES = {
    "plain": PLAIN,
    "fast": replace(PLAIN, ivon={**PLAIN.ivon, "lr": 20.0}),
    "wide": replace(PLAIN, ivon={**PLAIN.ivon, "ess": 1e6}),
}


@functools.lru_cache(maxsize=1)
def _load(sources: Sources) -> Splits:
    folder = weights_of(sources, NAME, WANTED)
    data = nlvr(sources.data)

    def examples(scenes: Scenes, orders: Sequence[Sequence[int]] = ORDERS[:1]) -> Columns:
        """With boxes and colours in all of these orders."""
        tokens, changed = shape_tokens(scenes.boxes), list(itertools.product(orders, orders))
        words = [tokenize(folder, recoloured(scenes.texts, colours), LENGTH) for colours in orders]
        shapes = [rearranged(*tokens, boxes, colours) for boxes, colours in changed]
        image, present = (torch.cat(parts) for parts in zip(*shapes, strict=True))
        text = {name: torch.cat([each[name] for each in words]).repeat(len(orders), 1) for name in words[0]}
        return Columns({**text, "image": image, "present": present}, scenes.truth.repeat(len(changed))[:, None])

    known = data["dev"] + data["hidden"]
    held = in_some_groups(known.groups, HELD_OUT)
    return Splits(
        examples(known.take(~held), ORDERS),
        examples(known.take(held)),
        examples(data["test"]),
        ("false", "true"),
        tuple(data["test"].texts),
    )


def splits(sources: Sources, _: int) -> Splits:
    """Trained on dev and hidden, in all orders of boxes and colours, but for a fifth of their sentences."""
    return _load(sources)


NLVR_MULTIWAY = Experiment(
    name=NAME,
    title="NLVR (multiway)",
    about=(
        "MiniLM's blocks with experts for words and for the shapes of a scene, fine-tuned on 1,580 statements in all "
        "orders of boxes and colours; 390 are held out, 990 tested. Votes of annotators are soft labels."
    ),
    paper="NLVR2 (BEiT-3-base)",
    stand_in=True,
    splits=splits,
    model=start(Multiway, NAME),
    recipe=PLAIN,
    prepare=masked,
    link=Sigmoid(),
    side_by_side=3,
    evaluation_batch=250,
    candidates=CANDIDATES,
)
