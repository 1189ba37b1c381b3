"""VQAv2 with BEiT-3 base of 228.1 million weights, fine-tuned from a pretrained checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from experiments.data.illustrated import Squares
from experiments.experiment import Experiment, Sources
from experiments.models.beit3 import LENGTH, Beit3ForQuestions, beit3, padded
from experiments.models.transformer import tokenize
from experiments.recipes import Recipe, Schedule
from experiments.rows import questions
from experiments.rows.pretrained import weights_of
from experiments.rows.scratch import centred
from varprop.prediction.links import Sigmoid

NAME = "vqav2-beit3"
WANTED = (
    "give a folder with a pretrained BEiT-3 base (beit3_base_patch16_224.pth of unilm) and its tokenizer.json (from "
    "beit3.spm, saved by transformers' XLMRobertaTokenizerFast)"
)
SIDE = 480

# The paper's. It says nothing of batch, schedule and augmentation: those are ours.
RECIPE = Recipe(
    model={"classes": 3129, "img_size": SIDE},
    epochs=10,
    batch=128,
    ivon={"lr": 0.02, "ess": 5e5, "hess_init": 0.5, "beta2": 0.99995, "weight_decay": 5e-5, "clip_radius": 1e-3},
    schedule=Schedule(warmup=0.1),
    gradient_clip=25.0,
    calibration={"micro_batch": 16},  # for the memory of its gradients alone; steps are of 256
)


def folder(sources: Sources) -> Path:
    return weights_of(sources, NAME, WANTED)


def tokens(place: Path, texts: Sequence[str]) -> dict[str, Tensor]:
    return padded(tokenize(place, texts, LENGTH), "question")


def start(recipe: Recipe, sources: Sources, seed: int) -> nn.Module:
    """The checkpoint with a head drawn from the seed."""
    return beit3(Beit3ForQuestions, folder(sources), seed, **recipe.model)


def prepare(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: centred(x) if name.startswith("image") else x for name, x in batch.items()}


VQAV2_BEIT3 = Experiment(
    name=NAME,
    title="VQAv2 (BEiT-3-base)",
    about="BEiT-3 base fine-tuned on the questions of VQAv2 about COCO's train2014; a tenth of val2014 is held out.",
    paper="VQAv2 (BEiT-3-base)",
    splits=questions.splits(folder, tokens, Squares(("image",), SIDE)),
    model=start,
    recipe=RECIPE,
    prepare=prepare,
    link=Sigmoid(),
    evaluation_batch=64,
)
