"""Kubeflow Pipelines components and SDK that take MindSpore from a notebook to a served model."""

__version__ = "0.1.0"
