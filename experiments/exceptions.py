"""What can go wrong with data and experiments. Messages name the place and the remedy."""

from __future__ import annotations

from varprop.errors import VarpropError


class DataError(VarpropError, ValueError):
    """A data set or a file of weights that is missing, damaged or of another kind."""


class ExperimentError(VarpropError, RuntimeError):
    """An experiment that cannot be run here as it was asked for."""
