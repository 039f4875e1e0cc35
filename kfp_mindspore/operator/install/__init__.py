"""What the operator needs in a cluster: one source for `operator install` and for the kustomize files."""

from __future__ import annotations

from kfp_mindspore.operator.install.choices import Choices
from kfp_mindspore.operator.install.objects import build_objects

__all__ = ["Choices", "build_objects"]
