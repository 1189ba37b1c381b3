"""Synthetic checkpoints in exactly the formats of the public ones of transformers."""

import re

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from tests.models import SMALL

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "good", "bad", "film", "##s", "."]
SIZES = {**SMALL, "image_size": 16, "patch_size": 4}


def bert(folder):
    """A folder as sentence encoders have it: BertModel's names, position_ids of older versions, a tokenizer."""
    torch.manual_seed(0)
    config = transformers.BertConfig(**SMALL, vocab_size=len(WORDS))
    transformers.BertModel(config).save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.position_ids"] = torch.arange(config.max_position_embeddings)[None]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return tokenizer(folder)


def tokenizer(folder):
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_padding(length=128)  # as in the published file: ours must override it
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def vilt(folder, **sizes):
    """Of ``ViltModel`` with its pooler, without a head: as for masked language modelling."""
    torch.manual_seed(0)
    config = transformers.ViltConfig(**sizes)
    transformers.ViltModel(config).save_pretrained(folder)
    return tokenizer(folder)


def vit(folder, sizes=SIZES):
    """A checkpoint with the names ViT had when the public ones were made, and a head for 7 classes."""
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, num_labels=7))
    model.save_pretrained(folder)
    save_file({published(n): t for n, t in load_file(folder / "model.safetensors").items()}, folder / "w.safetensors")
    (folder / "w.safetensors").replace(folder / "model.safetensors")
    return folder, model.eval()


def published(name):
    for new, old in [
        (r"^vit\.layers\.", "vit.encoder.layer."),
        (
            r"attention\.([qkv])_proj",
            lambda m: f"attention.attention.{ {'q': 'query', 'k': 'key', 'v': 'value'}[m[1]] }",
        ),
        (r"attention\.o_proj", "attention.output.dense"),
        (r"mlp\.fc1", "intermediate.dense"),
        (r"mlp\.fc2", "output.dense"),
    ]:
        name = re.sub(new, old, name)
    return name
