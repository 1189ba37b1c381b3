"""Variance scales, fitted on held-out data."""
