"""Readers of sources: one module for each format, all of which return a `Source`."""
