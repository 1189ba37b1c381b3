"""VQAv2 with BEiT-3 base of 228.1 million weights and ViLT-B/32 of 117.6 million, fine-tuned from checkpoints."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from experiments.data.examples import Column, Examples, in_some_groups
from experiments.data.image_files import Padded, square_files
from experiments.data.vqav2 import SIZE, Questions, vqav2
from experiments.experiment import Experiment, ReadSplits, Sources, Splits, same_for_every_seed
from experiments.models import beit3, vilt
from experiments.models.transformer import tokenize
from experiments.recipes import UNCLIPPED, Recipe, Schedule
from experiments.rows.starting_points import centred, from_weights
from varprop.prediction.links import Sigmoid

HELD_OUT = 0.1
"""Of the images of val2014: a share to calibrate on."""
BEIT3, VILT = "vqav2-beit3", "vqav2-vilt"
WANTED = {
    BEIT3: "give a folder with a pretrained BEiT-3 base (beit3_base_patch16_224.pth of unilm) and its tokenizer.json "
    "(from beit3.spm, saved by transformers' XLMRobertaTokenizerFast)",
    VILT: "give the folder of a pretrained ViLT (config.json, tokenizer.json, model.safetensors, such as "
    "dandelin/vilt-b32-mlm of Hugging Face)",
}
SIDE = 480

# The paper's. It says nothing of batch, schedule and augmentation: those are ours.
BEIT3_RECIPE = Recipe(
    model={"classes": 3129, "img_size": SIDE},
    epochs=10,
    batch=128,
    ivon={"lr": 0.02, "ess": 5e5, "hess_init": 0.5, "beta2": 0.99995, "weight_decay": 5e-5, "clip_radius": 1e-3},
    schedule=Schedule(warmup=0.1),
    gradient_clip=25.0,
    calibration={"micro_batch": 16},  # for the memory of its gradients alone; steps are of 256
)
VILT_RECIPE = Recipe(
    model={"classes": 3129},
    epochs=50,
    batch=256,
    ivon={"lr": 0.5, "ess": 5e5, "hess_init": 2e-2, "beta2": 0.99995, "weight_decay": 5e-5, "clip_radius": 1e-3},
    schedule=Schedule(warmup=0.1),
    gradient_clip=UNCLIPPED,
    calibration={"micro_batch": 32},
)


def beit3_columns(side: int = SIDE) -> Callable[[Path, Questions], dict[str, Column]]:
    def columns(folder: Path, part: Questions) -> dict[str, Column]:
        tokens = beit3.padded(tokenize(folder, part.texts, beit3.LENGTH), "question")
        return {**tokens, "image": square_files(part.paths, side)}

    return columns


def vilt_columns(view: Padded) -> Callable[[Path, Questions], dict[str, Column]]:
    return lambda folder, part: {**tokenize(folder, part.texts, vilt.LENGTH), **view(part.paths)}


def splits(name: str, columns: Callable[[Path, Questions], dict[str, Column]], size: int | None = SIZE) -> ReadSplits:
    """Trained on train2014; of val2014 a tenth of the images is held out, and the questions about the others tested.

    The labels of the test part are not published, and the paper does not say how it divided the others: this division
    is ours. Questions without an answer in the vocabulary are left out of the training; those tested nobody gets right.
    """

    @same_for_every_seed
    def load(sources: Sources) -> Splits:
        folder = sources.trained_weights(name, WANTED[name])
        data = vqav2(sources.data, size)
        train, val = (Examples(columns(folder, part), part.scores) for part in (data.train, data.val))
        held = in_some_groups(data.val.paths, HELD_OUT)
        answerable = data.train.scores.values.sum(1) > 0
        return Splits(train.take(answerable), val.take(held), val.take(~held), data.answers)

    return load


def prepare_beit3(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: centred(x) if name.startswith("image") else x for name, x in batch.items()}


def prepare_vilt(batch: dict[str, Tensor]) -> dict[str, Tensor]:
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


VQAV2_BEIT3 = Experiment(
    name=BEIT3,
    title="VQAv2 (BEiT-3-base)",
    about="BEiT-3 base fine-tuned on the questions of VQAv2 about COCO's train2014; a tenth of val2014 is held out.",
    paper="VQAv2 (BEiT-3-base)",
    splits=splits(BEIT3, beit3_columns()),
    from_weights=True,
    model=from_weights(BEIT3, WANTED[BEIT3], functools.partial(beit3.beit3, beit3.Beit3ForQuestions)),
    recipe=BEIT3_RECIPE,
    prepare=prepare_beit3,
    link=Sigmoid(),
    evaluation_batch=64,
)
VQAV2_VILT = Experiment(
    name=VILT,
    title="VQAv2 (ViLT)",
    about="ViLT-B/32 fine-tuned on the questions of VQAv2 about COCO's train2014; a tenth of val2014 is held out.",
    paper="VQAv2 (ViLT)",
    splits=splits(VILT, vilt_columns(Padded())),
    from_weights=True,
    model=from_weights(VILT, WANTED[VILT], vilt.vilt_for_questions),
    recipe=VILT_RECIPE,
    prepare=prepare_vilt,
    link=Sigmoid(),
    evaluation_batch=64,
)
