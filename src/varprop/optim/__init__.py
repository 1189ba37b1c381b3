"""IVON: an optimizer that trains a Gaussian posterior over the weights."""

from varprop.optim.optimizer import IVON

__all__ = ["IVON"]
