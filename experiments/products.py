"""Products of matrices on a GPU: float32 in its tensor cores, which round factors to TF32's eleven bits."""

from __future__ import annotations

import torch


def multiply_fast(device: str) -> None:
    """On CUDA alone; sums stay float32."""
    if torch.device(device).type == "cuda":
        torch.set_float32_matmul_precision("high")


def products(device: str) -> dict[str, str]:
    """What rows say of it."""
    return {"products": "TF32"} if torch.device(device).type == "cuda" else {}
