"""Placeholder docstring: replaced by the room."""
