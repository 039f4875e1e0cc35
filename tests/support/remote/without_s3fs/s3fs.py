"""Replaces s3fs in a process that must not import it."""

raise ImportError("No module named 's3fs'")
