"""Predictors as files that run without varprop."""
