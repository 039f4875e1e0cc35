"""Pipelines around model training."""
