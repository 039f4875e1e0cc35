"""The operator's manifests: one source for `operator install` and for the kustomize files."""

from __future__ import annotations

from kfp_mindspore.operator.install.objects import build_objects
from kfp_mindspore.operator.install.options import InstallOptions

__all__ = ["InstallOptions", "build_objects"]
