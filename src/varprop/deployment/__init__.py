"""Predictors at work: exported, serving, scoring large data, writing texts."""
