"""Kubeflow Pipelines components and SDK that take MindSpore from a notebook to a served model."""

import lazy_loader

from kfp_mindspore.compat import protobuf as _protobuf
from kfp_mindspore.streams import escape_unprintable as _escape_unprintable

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

_protobuf.install()
# Each entry point imports the package, a user's training script too.
_escape_unprintable()
