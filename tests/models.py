"""Small models to propagate through: the eight architectures of Hugging Face we promise, from configs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tokenizers
import torch
import transformers
from torch import Tensor, nn

import varprop as vp

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
PADDED = torch.tensor([[1] * 7, [1] * 5 + [0] * 2, [1] * 6 + [0]])
LEFT_PADDED = PADDED.flip(1)
Batch = dict[str, Tensor]


def _images(size: int = 16) -> Batch:
    return {"pixel_values": torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(1))}


def _tokens(**more: Tensor) -> Batch:
    return {"input_ids": torch.randint(3, 50, (3, 7), generator=torch.Generator().manual_seed(1)), **more}


def _vit(**options: Any) -> tuple[nn.Module, Batch]:
    config = transformers.ViTConfig(
        **{**SMALL, "num_hidden_layers": 2}, image_size=16, patch_size=4, num_labels=5, **options
    )
    return transformers.ViTForImageClassification(config), _images()


def _bert(**options: Any) -> tuple[nn.Module, Batch]:
    config = transformers.BertConfig(**SMALL, vocab_size=50, num_labels=3, **options)
    return transformers.BertForSequenceClassification(config), _tokens(attention_mask=PADDED)


def _distilbert(**options: Any) -> tuple[nn.Module, Batch]:
    config = transformers.DistilBertConfig(
        dim=32, n_layers=1, n_heads=4, hidden_dim=48, vocab_size=50, num_labels=3, **options
    )
    return transformers.DistilBertForSequenceClassification(config), _tokens(attention_mask=PADDED)


def _beit(**options: Any) -> tuple[nn.Module, Batch]:
    config = transformers.BeitConfig(
        **SMALL, image_size=16, patch_size=4, num_labels=5, use_relative_position_bias=True, **options
    )
    return transformers.BeitForImageClassification(config), _images()


def _clip(**options: Any) -> tuple[nn.Module, Batch]:
    config = transformers.CLIPConfig(
        vision_config={**SMALL, "image_size": 16, "patch_size": 4},
        text_config={**SMALL, "vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2},
        num_labels=5,
        **options,
    )
    return transformers.CLIPForImageClassification(config), _images()


def _gpt2(**options: Any) -> tuple[nn.Module, Batch]:
    tokens = {"bos_token_id": 1, "eos_token_id": 2}
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=50, n_positions=32, **tokens, **options)
    return transformers.GPT2LMHeadModel(config), _tokens()


def _llama(**options: Any) -> tuple[nn.Module, Batch]:
    config = transformers.LlamaConfig(
        **SMALL, num_key_value_heads=2, vocab_size=50, max_position_embeddings=64, **options
    )
    return transformers.LlamaForCausalLM(config), _tokens(attention_mask=LEFT_PADDED)


def _resnet(**options: Any) -> tuple[nn.Module, Batch]:
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
    return transformers.ResNetForImageClassification(
        transformers.ResNetConfig(**sizes, num_labels=5, **options)
    ), _images(32)


MAKERS: dict[str, Callable[..., tuple[nn.Module, Batch]]] = {
    "vit": _vit,
    "bert": _bert,
    "distilbert": _distilbert,
    "beit": _beit,
    "clip": _clip,
    "gpt2": _gpt2,
    "llama": _llama,
    "resnet": _resnet,
}


def make(name: str, **options: Any) -> tuple[nn.Module, Batch]:
    """A model in eval mode with non-trivial weights, and a batch for it."""
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    model, batch = MAKERS[name](**options)
    with torch.no_grad():
        for parameter in model.parameters():  # fresh biases and tables are zero, which would hide mistakes
            parameter.add_(
                0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
            )
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.uniform_(-0.5, 0.5)
                module.running_var.uniform_(0.5, 2.0)
    return model.eval(), batch


def tokenizer_of(*words: str) -> transformers.PreTrainedTokenizerFast:
    """Of whole words, which come after ``[PAD]`` and ``[UNK]``."""
    vocabulary = {word: number for number, word in enumerate(("[PAD]", "[UNK]", *words))}
    found = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    found.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=found, pad_token="[PAD]", unk_token="[UNK]")


def posterior_of(model: nn.Module, var: float = 1e-4) -> vp.Posterior:
    """The model's weights as means, and the same variance for all of them."""
    mean = dict(model.named_parameters())
    return vp.Posterior.from_tensors(mean, {name: torch.full_like(tensor, var) for name, tensor in mean.items()})
