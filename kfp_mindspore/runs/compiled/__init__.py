"""Compiled pipelines: their sources, and what their YAML has of tasks, arguments and images."""
