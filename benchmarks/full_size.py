"""Models at their full size on a CPU, with random weights: captured, propagated, checked; how long, how much memory.

python benchmarks/full_size.py vit_b_16             # one model, as a line of JSON; each needs a process of its own
for m in $(python benchmarks/full_size.py); do python benchmarks/full_size.py $m; done > FILE
"""

from __future__ import annotations

import json
import resource
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import varprop as vp
from varprop.calibration.widths import PosteriorWidth
from varprop.graph.output import select_output

LENGTH = 16
Batch = dict[str, Tensor]
Made = tuple[nn.Module, Callable[[int], Batch], str | None]
"""A model, batches for it by their size, and the name of its output."""


def images(name: str = "x") -> Callable[[int], Batch]:
    return lambda count: {name: torch.randn(count, 3, 224, 224)}


def tokens(count: int) -> Batch:
    ids = torch.randint(3, 1000, (count, LENGTH))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def of_torchvision(name: str) -> Made:
    import torchvision

    model = getattr(torchvision.models, name)()
    if name.startswith("vit"):
        nn.init.normal_(model.heads.head.weight, std=0.02)  # it begins with zeros
    return model, images(), None


def of_timm(name: str) -> Made:
    import timm

    return timm.create_model(name, pretrained=False), images(), None


def of_transformers(kind: str, inputs: Callable[[int], Batch], **options: Any) -> Made:
    import transformers

    made = getattr(transformers, kind)
    return made._from_config(made.config_class(**options)), inputs, None  # which heeds the dtype of the configuration


def bert_large() -> Made:
    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    return of_transformers("BertForSequenceClassification", tokens, **sizes)


def llama_1b() -> Made:
    """The sizes of Llama 3.2 1B, in bfloat16."""
    model, inputs, output = of_transformers(
        "LlamaForCausalLM",
        tokens,
        hidden_size=2048,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=8192,
        vocab_size=128_256,
        tie_word_embeddings=True,
        dtype="bfloat16",
    )
    return model, inputs, output


def beit3() -> Made:
    from torchscale.architecture.config import EncoderConfig
    from torchscale.model.BEiT3 import BEiT3

    sizes = {"encoder_embed_dim": 768, "encoder_attention_heads": 12, "encoder_ffn_embed_dim": 3072}
    config = EncoderConfig(
        img_size=224, patch_size=16, vocab_size=64010, multiway=True, encoder_layers=12, no_output_layer=True, **sizes
    )

    def batch(count: int) -> Batch:
        ids = torch.randint(3, 1000, (count, LENGTH))
        return {"textual_tokens": ids, "visual_tokens": torch.randn(count, 3, 224, 224)}

    return BEiT3(config), batch, "encoder_out"


def vilt() -> Made:
    def batch(count: int) -> Batch:
        return tokens(count) | {
            "token_type_ids": torch.zeros(count, LENGTH, dtype=torch.long),
            "pixel_values": torch.randn(count, 3, 384, 384),
            "pixel_mask": torch.ones(count, 384, 384, dtype=torch.long),
        }

    return of_transformers("ViltForQuestionAnswering", batch, num_labels=3129)


MAKERS: dict[str, Callable[[], Made]] = {
    "torchvision:vit_b_16": lambda: of_torchvision("vit_b_16"),
    "timm:vit_base_patch16_224": lambda: of_timm("vit_base_patch16_224"),
    "transformers:ViT-B/16": lambda: of_transformers("ViTForImageClassification", images("pixel_values")),
    "torchvision:resnet50": lambda: of_torchvision("resnet50"),
    "timm:resnet50": lambda: of_timm("resnet50"),
    "transformers:ResNet-50": lambda: of_transformers("ResNetForImageClassification", images("pixel_values")),
    "torchvision:convnext_base": lambda: of_torchvision("convnext_base"),
    "torchvision:swin_b": lambda: of_torchvision("swin_b"),
    "transformers:BERT-large": bert_large,
    "transformers:ViLT": vilt,
    "torchscale:BEiT-3 base": beit3,
    "transformers:Llama-1B": llama_1b,
}


def study(name: str) -> dict[str, Any]:
    """Capture and propagate: times in CPU seconds of one thread, memory in GiB; what must hold is asserted."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, batch, output = MAKERS[name]()
    model.eval()
    weights = dict(model.named_parameters())
    std = 0.1 * (sum(float(w.double().square().sum()) for w in weights.values()) ** 0.5)
    count = sum(w.numel() for w in weights.values())
    var = torch.tensor(std**2 / count)
    posterior = vp.Posterior.from_tensors(weights, {key: var.to(w.dtype).expand(w.shape) for key, w in weights.items()})
    two, three = batch(2), batch(3)
    with torch.no_grad():
        passing, plain = _timed(lambda: select_output(model(**two), output))
    net = vp.propagate(model, posterior, output=output)
    for path, weight in weights.items():
        weight.data = net.mean[path]  # the same numbers, once in memory
    del posterior, weights
    with torch.no_grad():
        capture, _ = _timed(lambda: net.capture(**two))
        seconds, found = _timed(lambda: net(**two))
        other = net(**three)
        _check(found, plain.shape)
        _check(other, (3, *plain.shape[1:]))
        PosteriorWidth(net).set(0.0)
        still = net(**two)
    assert not still.var.any(), "variance out of nothing"
    error = float((still.mean - plain).abs().max() / plain.abs().max())
    assert error < (0.05 if plain.dtype == torch.bfloat16 else 1e-3), f"zero variance: the mean is off by {error}"
    return {
        "name": name,
        "parameters": count,
        "dtype": str(plain.dtype).removeprefix("torch."),
        "capture": capture,
        "plain": passing,
        "pass": seconds,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "graphs": len(net.signatures),
        "error": error,
        "std": float(found.var.float().sqrt().median()),
    }


def _check(found: vp.Moments, shape: Any) -> None:
    assert found.mean.shape == found.var.shape == tuple(shape), (found.mean.shape, found.var.shape, shape)
    assert found.mean.isfinite().all(), "the mean is not finite"
    assert found.var.isfinite().all(), "the variance is not finite"
    assert (found.var >= 0).all(), "a variance is negative"
    assert found.var.any(), "there is no variance"


def _timed(run: Callable[[], Any]) -> tuple[float, Any]:
    started = time.process_time()
    result = run()
    return time.process_time() - started, result


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print("\n".join(MAKERS))
    else:
        warnings.simplefilter("ignore")
        print(json.dumps(study(sys.argv[1])))
