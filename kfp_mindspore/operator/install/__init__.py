"""Operator installation, with the manifests of config/operator/base."""

from __future__ import annotations

from kfp_mindspore.operator.install.objects import build_objects
from kfp_mindspore.operator.install.options import InstallOptions

__all__ = ["InstallOptions", "build_objects"]
