"""Classifiers of Hugging Face transformers on top of a checkpoint folder, with a fresh head."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.faults import DataError

NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_SHOWN = 6
# What other heads and older versions leave in a checkpoint, and a classifier does without.
_UNUSED = ("pooler", "cls", "lm_head", "classifier", "position_ids", "mask_token")


def library() -> Any:
    """The package transformers, imported when it is needed."""
    try:
        import transformers
    except ImportError:
        raise DataError("this model is one of transformers: pip install 'varprop[hf]'") from None
    return transformers


def settings_of(folder: Path, kind: str) -> dict[str, Any]:
    """The folder's config.json, if it describes a model of that kind and there are safetensors to go with it."""
    path = folder / "config.json"
    if not path.is_file():
        raise DataError(f"{folder} is no checkpoint of transformers: it holds no config.json")
    try:
        settings = json.loads(path.read_text())
        found = settings.get("model_type")
    except (OSError, ValueError, AttributeError):
        raise DataError(f"{path} is not a configuration of transformers") from None
    if found != kind:
        raise DataError(f"{folder} holds a model of type {found!r}; one of type {kind!r} is needed")
    if not any(folder.glob("*.safetensors")):
        raise DataError(f"{folder} holds no .safetensors file; other formats can run code and are not opened")
    return settings


def classifier(folder: Path, maker: type[nn.Module], classes: int, seed: int, *, fresh: Sequence[str]) -> nn.Module:
    """A ``maker`` in eval mode, without dropout, with the folder's weights.

    The head is drawn anew from ``seed``; what lies below ``fresh`` is too, if the checkpoint lacks it.
    """
    made: Any = maker
    with _quiet():  # about other numbers of classes in the folder's configuration
        config = made.config_class.from_pretrained(folder, num_labels=classes, **NO_DROPOUT)
    try:
        with _quiet(), torch.random.fork_rng(devices=[]):  # drawing a head leaves the global generator alone
            model, found = made.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                local_files_only=True,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception as error:  # transformers and safetensors raise all kinds for damaged files
        raise DataError(f"{folder} cannot be read as a checkpoint of {maker.__name__}: {error}") from error
    allowed = ("classifier", *fresh)
    _refuse_misfits(folder, maker, found, allowed)
    drawn = {name for name in found["missing_keys"] if _below(name, fresh)} | {"classifier.weight", "classifier.bias"}
    draw(model, sorted(drawn), seed, config.initializer_range)
    return model.eval()


def draw(model: nn.Module, names: Sequence[str], seed: int, std: float) -> None:
    """Normal weights and zero biases, from ``seed`` alone."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name in names:
            parameter: Tensor = model.get_parameter(name)
            if parameter.ndim > 1:
                parameter.copy_(std * torch.randn(parameter.shape, generator=generator))
            else:
                parameter.zero_()


def _refuse_misfits(folder: Path, maker: type[nn.Module], found: dict[str, Any], allowed: Sequence[str]) -> None:
    problems = [f"lacks {name}" for name in sorted(found["missing_keys"]) if not _below(name, allowed)]
    problems += [
        f"{name} is {'×'.join(map(str, there))}, and should be {'×'.join(map(str, here))}"
        for name, there, here in sorted(found["mismatched_keys"])
        if not _below(name, allowed)
    ]
    problems += [
        f"has {name}, which the model lacks" for name in sorted(found["unexpected_keys"]) if not _below(name, _UNUSED)
    ]
    if problems:
        rest = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise DataError(
            f"{folder} does not hold the weights of the {maker.__name__} its config.json describes: "
            f"{'; '.join(problems[:_SHOWN])}{rest}"
        )


def _below(name: str, paths: Sequence[str]) -> bool:
    return any(path in name.split(".") for path in paths)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the report and the progress bar of transformers: what is in them and matters, the errors say."""
    logging = library().logging
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
