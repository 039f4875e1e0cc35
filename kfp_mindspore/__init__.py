"""Kubeflow Pipelines components and SDK that take MindSpore from a notebook to a served model."""

from kfp_mindspore.compat import protobuf as _protobuf

__version__ = "0.1.0"

_protobuf.install()
