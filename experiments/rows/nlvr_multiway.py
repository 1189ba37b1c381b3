"""NLVR with a small multiway model of words and shapes: it stands in for NLVR2 with BEiT-3."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from experiments.data.examples import Examples, Lookup, in_some_groups
from experiments.data.nlvr import BOXES, FEATURES, MOST, ORDERS, Scenes, nlvr, rearranged, recoloured, shape_tokens
from experiments.data.nlvr_templates import EASY, SIMPLE, TEMPLATES, Templates, generate
from experiments.exceptions import ExperimentError
from experiments.experiment import Experiment, Pretraining, Sources, Splits, same_for_every_seed
from experiments.models.fusion import PRETRAINED, Multiway, masked, pretrained_fusion
from experiments.models.transformer import tokenize
from experiments.recipes import AdamWRecipe, Recipe, Schedule
from experiments.rows import daquar_fusion
from experiments.rows.daquar_fusion import WANTED, from_minilm
from varprop.prediction.links import Sigmoid

NAME = "nlvr-multiway"
PRETRAINED_WANTED = f"give the folder that python -m experiments pretrain {NAME} makes of MiniLM's"
LENGTH = 32
"""Tokens of a statement: those of dev and hidden have 25 at most."""
HELD_OUT = 0.2
"""Of the sentences of dev and hidden."""

PRETRAINING = AdamWRecipe(
    model={"features": FEATURES, "tokens": BOXES * MOST, "classes": 1},
    epochs=0,  # each stage has its own
    batch=256,
    adamw={"lr": 1e-4, "weight_decay": 0.01},
    schedule=Schedule(warmup=0.1, plateau=0.4),
    gradient_clip=1.0,
)
STAGES = ((EASY, 50_000, 2), (SIMPLE, 150_000, 5), (TEMPLATES, 300_000, 5))
"""Templates, examples and epochs. Statements become harder from one to the next: of all at once little is learned."""
SLOW = replace(
    daquar_fusion.PLAIN,
    model=PRETRAINING.model,
    epochs=2,  # most is learned already
    batch=128,
    ivon={**daquar_fusion.PLAIN.ivon, "lr": 2.0},
    calibration={"epochs": 100},  # 200 steps of the 400 held-out statements
)
CANDIDATES = {
    "slow": SLOW,
    "plain": replace(SLOW, ivon={**SLOW.ivon, "lr": 5.0}),
    "slower": replace(SLOW, ivon={**SLOW.ivon, "lr": 0.5}),
}


@same_for_every_seed
def splits(sources: Sources) -> Splits:
    """Trained on dev and hidden, in all orders of boxes and colours, but for a fifth of their sentences."""
    folder = sources.trained_weights(NAME, WANTED)
    data = nlvr(sources.data)

    def examples(scenes: Scenes, orders: Sequence[Sequence[int]] = ORDERS[:1]) -> Examples:
        """With boxes and colours in all of these orders."""
        tokens, changed = shape_tokens(scenes.boxes), list(itertools.product(orders, orders))
        words = [tokenize(folder, recoloured(scenes.texts, colours), LENGTH) for colours in orders]
        shapes = [rearranged(*tokens, boxes, colours) for boxes, colours in changed]
        image, present = (torch.cat(parts) for parts in zip(*shapes, strict=True))
        text = {name: torch.cat([each[name] for each in words]).repeat(len(orders), 1) for name in words[0]}
        return Examples({**text, "image": image, "present": present}, scenes.truth.repeat(len(changed))[:, None])

    known = data["dev"] + data["hidden"]
    held = in_some_groups(known.groups, HELD_OUT)
    return Splits(
        examples(known.take(~held), ORDERS),
        examples(known.take(held)),
        examples(data["test"]),
        ("false", "true"),
        tuple(data["test"].texts),
    )


def generated(sources: Sources, count: int, templates: Templates) -> Examples:
    """Statements about generated scenes; many share a scene or a sentence."""
    data = generate(count, 0, templates)
    words = tokenize(sources.trained_weights(NAME, WANTED), data.texts, LENGTH)
    columns = {name: Lookup(data.text, table) for name, table in words.items()}
    columns |= {"image": Lookup(data.scene, data.tokens), "present": Lookup(data.scene, data.present)}
    return Examples(columns, data.truth[:, None])


def start(recipe: Recipe, sources: Sources, _: int) -> nn.Module:
    """All pretrained weights, the head's too: seeds differ in the order of examples and in their noise."""
    folder = sources.trained_weights(NAME, PRETRAINED_WANTED)
    if not (folder / PRETRAINED).is_file():
        raise ExperimentError(f"{folder} holds no {PRETRAINED}: {PRETRAINED_WANTED}, with --weights")
    return pretrained_fusion(Multiway, folder, **recipe.model)


NLVR_MULTIWAY = Experiment(
    name=NAME,
    title="NLVR (multiway)",
    about=(
        "MiniLM's blocks with experts for words and for the shapes of a scene, pretrained with AdamW on 500,000 "
        "generated examples (scenes in NLVR's style, statements from templates, computed truth), fine-tuned on 1,580 "
        "statements in all orders of boxes and colours; 390 are held out, 990 tested. Votes are soft labels."
    ),
    paper="NLVR2 (BEiT-3-base)",
    stand_in=True,
    splits=splits,
    from_weights=True,
    model=start,
    pretraining=tuple(
        Pretraining(
            functools.partial(generated, templates=templates),
            count,
            from_minilm(Multiway, NAME) if templates is EASY else start,
            replace(PRETRAINING, epochs=epochs),
        )
        for templates, count, epochs in STAGES
    ),
    recipe=SLOW,
    prepare=masked,
    link=Sigmoid(),
    side_by_side=3,
    evaluation_batch=256,
    candidates=CANDIDATES,
)
