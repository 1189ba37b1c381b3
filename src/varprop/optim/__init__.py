"""IVON: an optimizer that trains a Gaussian posterior over the weights."""

from varprop.optim.ivon import IVON

__all__ = ["IVON"]
