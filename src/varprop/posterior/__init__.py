"""Posterior: named means and variances, and where they come from."""

from varprop.posterior.gaussian import Posterior
from varprop.posterior.swag import SWAG

__all__ = ["SWAG", "Posterior"]
