"""Small ViLTs and BEiT-3s, and batches for them."""

import importlib.util
import sys
import types

import pytest
import torch

VILT = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 64,
    "patch_size": 32,
    "vocab_size": 50,
}
BEIT3 = {
    "img_size": 32,
    "patch_size": 16,
    "vocab_size": 50,
    "encoder_embed_dim": 16,
    "encoder_attention_heads": 2,
    "encoder_ffn_embed_dim": 32,
    "encoder_layers": 1,
}
# What torchscale imports and a BEiT-3 never calls: checkpointing of activations, sharding, dropping paths.
UNUSED = {"fairscale.nn": ("checkpoint_wrapper", "wrap"), "timm.models.layers": ("drop_path",)}


def require_torchscale(monkeypatch):
    """torchscale itself, with empty modules for those it imports and does not need here, where they are missing."""
    pytest.importorskip("torchscale")
    for path, names in UNUSED.items():
        if importlib.util.find_spec(path.partition(".")[0]) is None:
            module = types.ModuleType(path)
            module.__dict__.update(dict.fromkeys(names))
            for parent in [path.rsplit(".", i)[0] for i in range(1, path.count(".") + 1)]:
                monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
            monkeypatch.setitem(sys.modules, path, module)


def words(count, length=6):
    ids = torch.randint(3, 50, (count, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, length - 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def padded_images(sizes, canvas=(96, 128)):
    """Images of these heights and widths, with zeros below and to the right of them."""
    mask = torch.zeros(len(sizes), *canvas, dtype=torch.long)
    for row, (height, width) in enumerate(sizes):
        mask[row, :height, :width] = 1
    noise = torch.randn(len(sizes), 3, *canvas, generator=torch.Generator().manual_seed(1))
    return {"pixel_values": noise * mask[:, None], "pixel_mask": mask}


def image(count, side=32, seed=0):
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(seed))
