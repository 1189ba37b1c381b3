"""The stages before training, of rows that have some: from the given weights to those that every seed starts from."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from safetensors.torch import save
from torch import nn

from experiments.experiment import Experiment, Pretraining, Sources
from experiments.models.fusion import PRETRAINED
from experiments.rows.pretrained import weights_of
from experiments.training import Lane, lane, train

WANTED = "give the folder of those that its pretraining starts from"


def pretrained(
    experiment: Experiment, sources: Sources, folder: Path, device: str, *, progress: bool = True
) -> Sources:
    """The sources with the weights that pretraining makes of theirs, in a folder of their own inside ``folder``.

    It goes on where it was stopped; what is finished there, or was given, is not done again.
    """
    if not experiment.pretraining or (weights_of(sources, experiment.name, WANTED) / PRETRAINED).is_file():
        return sources
    folder.mkdir(parents=True, exist_ok=True)
    for number, stage in enumerate(experiment.pretraining, 1):
        name = f"{experiment.name}-stage{number}"
        where = lane(name, stage.recipe, 0, folder, sources.fingerprint, stage.count)
        made = where.checkpoint.with_suffix("")
        if not (made / PRETRAINED).is_file():
            _write(made, sources, _trained(experiment, stage, where, sources, device, progress))
        sources = replace(sources, weights=made)
    return sources


def _trained(
    experiment: Experiment, stage: Pretraining, where: Lane, sources: Sources, device: str, progress: bool
) -> nn.Module:
    def start(lane: Lane) -> nn.Module:
        return stage.model(lane.recipe, sources, lane.seed)

    examples = stage.examples(sources, stage.count)
    [found] = train([where], start, examples, experiment.prepare, device, link=experiment.link, progress=progress)
    model = start(where)
    model.load_state_dict(found.to("cpu").mean, strict=False)  # what is no parameter stays
    return model


def _write(made: Path, sources: Sources, model: nn.Module) -> None:
    """With tokenizer and configuration; in half precision, as a copy for other machines. The weights come last."""
    shutil.copytree(weights_of(sources, made.name, WANTED), made, dirs_exist_ok=True)
    part = made / f"{PRETRAINED}.part"
    part.write_bytes(save({name: tensor.half().contiguous() for name, tensor in model.state_dict().items()}))
    part.replace(made / PRETRAINED)
