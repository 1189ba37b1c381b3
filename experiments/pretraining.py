"""The stages before training, of rows that have some: from the given weights to those that every seed starts from."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from safetensors.torch import save
from torch import nn

from experiments.experiment import Experiment, Sources
from experiments.models.fusion import PRETRAINED
from experiments.training import run_in, train

WANTED = "give the folder of those that its pretraining starts from"


def pretrained(
    experiment: Experiment, sources: Sources, folder: Path, device: str, *, progress: bool = True
) -> Sources:
    """The sources with the weights that pretraining makes of theirs, in a folder of their own inside ``folder``.

    It goes on where it was stopped; what is finished there, or was given, is not done again.
    """
    if not experiment.pretraining or (sources.trained_weights(experiment.name, WANTED) / PRETRAINED).is_file():
        return sources
    folder.mkdir(parents=True, exist_ok=True)
    for number, stage in enumerate(experiment.pretraining, 1):
        run = run_in(folder, f"{experiment.name}-stage{number}", stage.recipe, 0, sources.fingerprint, stage.count)
        made = run.checkpoint.with_suffix("")
        if not (made / PRETRAINED).is_file():
            examples, its_own = stage.examples(sources, stage.count), replace(experiment, model=stage.model)
            [found] = train(its_own, [run], examples, device, sources=sources, progress=progress)
            model = stage.model(stage.recipe, sources, 0)
            model.load_state_dict(found.to("cpu").mean, strict=False)  # what is no parameter stays
            _write(made, sources.trained_weights(experiment.name, WANTED), model)
        sources = replace(sources, weights=made)
    return sources


def _write(made: Path, start: Path, model: nn.Module) -> None:
    """With tokenizer and configuration; in half precision, as a copy for other machines. The weights come last."""
    shutil.copytree(start, made, dirs_exist_ok=True)
    part = made / f"{PRETRAINED}.part"
    part.write_bytes(save({name: tensor.half().contiguous() for name, tensor in model.state_dict().items()}))
    part.replace(made / PRETRAINED)
