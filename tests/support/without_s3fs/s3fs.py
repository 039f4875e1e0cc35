"""Takes the place of s3fs in a process that must not find it."""

raise ImportError("No module named 's3fs'")
