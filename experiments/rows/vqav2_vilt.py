"""VQAv2 with ViLT-B/32 of 117.6 million weights, fine-tuned from a pretrained checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from experiments.data.illustrated import Padded
from experiments.experiment import Experiment, Sources
from experiments.models.transformer import tokenize
from experiments.models.vilt import LENGTH, vilt_for_questions
from experiments.recipes import UNCLIPPED, Recipe, Schedule
from experiments.rows import questions
from experiments.rows.pretrained import weights_of
from experiments.rows.scratch import centred
from varprop.prediction.links import Sigmoid

NAME = "vqav2-vilt"
WANTED = (
    "give the folder of a pretrained ViLT (config.json, tokenizer.json, model.safetensors, such as "
    "dandelin/vilt-b32-mlm of Hugging Face)"
)

# The paper's. It says nothing of batch, schedule and augmentation: those are ours.
RECIPE = Recipe(
    model={"classes": 3129},
    epochs=50,
    batch=256,
    ivon={"lr": 0.5, "ess": 5e5, "hess_init": 2e-2, "beta2": 0.99995, "weight_decay": 5e-5, "clip_radius": 1e-3},
    schedule=Schedule(warmup=0.1),
    gradient_clip=UNCLIPPED,
    calibration={"micro_batch": 32},
)


def folder(sources: Sources) -> Path:
    return weights_of(sources, NAME, WANTED)


def tokens(place: Path, texts: Sequence[str]) -> dict[str, Tensor]:
    return tokenize(place, texts, LENGTH)


def start(recipe: Recipe, sources: Sources, seed: int) -> nn.Module:
    """The checkpoint with a head drawn from the seed."""
    return vilt_for_questions(folder(sources), seed=seed, **recipe.model)


def prepare(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Images from −1 to 1, and a mask of where they are on the canvas, from their sizes."""
    images, sizes = batch["pixel_values"], batch["sizes"]
    inside = [torch.arange(images.shape[2 + i], device=images.device) < sizes[:, i, None] for i in (0, 1)]
    mask = inside[0][:, :, None] & inside[1][:, None, :]
    return {
        "input_ids": batch["input_ids"],
        "attention_mask": batch["attention_mask"],
        "pixel_values": centred(images) * mask[:, None],
        "pixel_mask": mask.long(),
    }


VQAV2_VILT = Experiment(
    name=NAME,
    title="VQAv2 (ViLT)",
    about="ViLT-B/32 fine-tuned on the questions of VQAv2 about COCO's train2014; a tenth of val2014 is held out.",
    paper="VQAv2 (ViLT)",
    splits=questions.splits(folder, tokens, Padded()),
    model=start,
    recipe=RECIPE,
    prepare=prepare,
    link=Sigmoid(),
    evaluation_batch=64,
)
