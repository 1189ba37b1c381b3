"""Predictors on the Hugging Face Hub, with the methods that models have there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from huggingface_hub import ModelHubMixin, snapshot_download

from varprop.errors import InputError
from varprop.prediction.folder import load
from varprop.prediction.predictors import Predictor

DOWNLOAD = ("revision", "cache_dir", "force_download", "local_files_only", "token")
FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "README.md")
"""What is fetched of a repository: tensors, settings, vocabularies; nothing that could hold code."""


class HubPredictor(ModelHubMixin, library_name="varprop"):
    """``HubPredictor(predictor).push_to_hub(name)``; ``HubPredictor.from_pretrained(name).predictor`` brings it back.

    What is pushed is what ``predictor.save_pretrained(folder)`` writes, with its model card; ``evaluation``, of
    ``vp.evaluate``, adds its figures. Repositories are read like folders: nothing in them is run, and further arguments
    of ``from_pretrained`` are those of ``vp.load``.
    """

    # Not called predictor: from_pretrained fills arguments from entries of config.json, which has one of that name.
    def __init__(self, held: Predictor, evaluation: Any = None) -> None:
        if not isinstance(held, Predictor):
            raise InputError(f"a predictor is pushed, vp.fit(model, held_out), not a {type(held).__name__}")
        self.predictor, self.evaluation = held, evaluation

    def _save_pretrained(self, save_directory: Path) -> None:
        self.predictor.save_pretrained(save_directory, evaluation=self.evaluation)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> Self:
        download = {name: options.pop(name) for name in DOWNLOAD}
        local = Path(model_id).is_dir()
        folder = model_id if local else snapshot_download(model_id, allow_patterns=list(FILES), **download)
        return cls(load(folder, **options))
