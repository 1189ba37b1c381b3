"""Posterior: named means and variances, and where they come from."""

from varprop.posterior.gaussian import Posterior

__all__ = ["Posterior"]
