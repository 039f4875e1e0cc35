"""Builders: every way to get from a plan to an image in a registry."""
