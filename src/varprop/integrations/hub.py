"""Predictors on the Hugging Face Hub, with the methods that models have there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from huggingface_hub import ModelHubMixin, snapshot_download

from varprop.errors import InputError
from varprop.prediction.folder import load
from varprop.prediction.predictors import Predictor

FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "README.md")
"""What is fetched of a repository: tensors, settings, vocabularies; nothing that could hold code."""


class HubPredictor(ModelHubMixin, library_name="varprop"):
    """``HubPredictor(predictor).push_to_hub(name)``; ``HubPredictor.from_pretrained(name).predictor`` brings it back.

    What is pushed is what ``predictor.save_pretrained(folder)`` writes, with its model card; ``evaluation``, of
    ``vp.evaluate``, adds its figures. Repositories are read like folders: nothing in them is run, and further arguments
    of ``from_pretrained`` are those of ``vp.load``.
    """

    def __init__(self, held: Predictor, evaluation: Any = None) -> None:
        if not isinstance(held, Predictor):
            raise InputError(f"a predictor is pushed, vp.fit(model, held_out), not a {type(held).__name__}")
        self.predictor, self.evaluation = held, evaluation

    def _save_pretrained(self, save_directory: Path) -> None:
        self.predictor.save_pretrained(save_directory, evaluation=self.evaluation)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        **options: Any,
    ) -> Self:
        folder = model_id
        if not Path(model_id).is_dir():
            folder = snapshot_download(
                model_id,
                revision=revision,
                cache_dir=cache_dir,
                force_download=force_download,
                local_files_only=local_files_only,
                token=token,
                allow_patterns=list(FILES),
            )
        return cls(load(folder, **options))
