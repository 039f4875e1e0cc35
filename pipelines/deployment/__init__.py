"""Pipelines that deploy models and compute predictions."""
