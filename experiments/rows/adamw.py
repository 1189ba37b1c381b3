"""Networks trained with AdamW, as most are, with the posterior of Adam's second moments. Not in the paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from experiments.augment import Augment
from experiments.data.imagenet import tiny_imagenet
from experiments.experiment import Experiment
from experiments.recipes import AdamWRecipe, Schedule, SentenceRecipe
from experiments.rows.cifar10_vit import CIFAR10_VIT
from experiments.rows.sst2_minilm import SST2_MINILM
from experiments.rows.starting_points import splits
from experiments.rows.tiny_imagenet_vit import TINY_IMAGENET_VIT
from varprop.evaluation.methods import listed

METHODS = tuple(listed("mean,temperature,mc-8,mc-64,streamlining,cvp-none,cvp"))
FROM_SCRATCH = AdamWRecipe(
    epochs=60,
    batch=128,
    adamw={"lr": 1e-3, "weight_decay": 0.05},
    schedule=Schedule(warmup=0.05),
)


def with_adamw(row: Experiment, recipe: AdamWRecipe, about: str, **changes: Any) -> Experiment:
    """The data of a row, and its network unless another is given, trained with AdamW."""
    named = {"name": f"{row.name}-adamw", "title": f"{row.title.removesuffix(')')}, AdamW)", "about": about}
    common: dict[str, Any] = {"methods": METHODS, "paper": None, "stand_in": False, "candidates": {}}
    return replace(row, recipe=recipe, **{**named, **common, **changes})


CIFAR10_VIT_ADAMW = with_adamw(
    CIFAR10_VIT,
    replace(FROM_SCRATCH, model=CIFAR10_VIT.recipe.model, augment=CIFAR10_VIT.recipe.augment),
    "A ViT of 1.8 million weights trained with AdamW on 45,000 images of CIFAR-10; 5,000 are held out.",
)
TINY_IMAGENET_VIT_ADAMW = with_adamw(
    TINY_IMAGENET_VIT,
    replace(FROM_SCRATCH, model=TINY_IMAGENET_VIT.recipe.model, augment=Augment(pad=8, flip=True)),
    "A ViT of 1.9 million weights trained with AdamW on 30,000 images of 100 classes; 5,000 are held out.",
    splits=splits(tiny_imagenet, held_out=5000),
)
SST2_MINILM_ADAMW = with_adamw(
    SST2_MINILM,
    AdamWRecipe(
        model=SST2_MINILM.recipe.model,
        epochs=3,
        batch=64,
        adamw={"lr": 5e-5, "weight_decay": 0.01},
        schedule=Schedule(warmup=0.1),
        calibration=SST2_MINILM.recipe.calibration,
    ),
    "A MiniLM sentence encoder fine-tuned with AdamW on 67,349 phrases from film reviews; 872 sentences are held out.",
)
SST2_MINILM_BY_LENGTH_ADAMW = replace(
    SST2_MINILM_ADAMW,
    name="sst2-minilm-by-length-adamw",
    title="SST-2 (MiniLM, AdamW, batches of similar length)",
    about=SST2_MINILM_ADAMW.about.replace("phrases", "phrases, in batches of similar length,"),
    recipe=SentenceRecipe(**vars(SST2_MINILM_ADAMW.recipe)),
    side_by_side=1,
)
