"""What can go wrong in training, each with a type of its own."""

from __future__ import annotations

from varprop.errors import VarpropError


class SettingError(VarpropError, ValueError):
    """An option of the optimizer, or a checkpoint, that makes no sense."""


class SamplingError(VarpropError, RuntimeError):
    """Steps, draws and gradients in an order that would train something else than the posterior."""
