"""Posterior: a diagonal Gaussian over named parameters, and where it comes from.

Each source is a file with a function ``moments(model, …)``, which is given the model below its wrappers and returns
moments by its names, and a classmethod ``Posterior.from_…`` that calls it. The simplest, ``isotropic``, is in
``diagonal.py``.
"""

from varprop.posterior.gaussian import Posterior
from varprop.posterior.swag import SWAG

__all__ = ["SWAG", "Posterior"]
