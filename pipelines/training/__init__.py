"""Pipelines around the training of a model."""
