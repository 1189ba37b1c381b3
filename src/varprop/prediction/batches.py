"""Batches, by the name the room had for them before posteriors read batches too."""

from varprop.batch import Batch, read, refuse_nan, repeatable

__all__ = ["Batch", "read", "refuse_nan", "repeatable"]
