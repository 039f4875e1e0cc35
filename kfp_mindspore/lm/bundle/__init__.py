"""`causal-lm` bundles: import, creation without training, export and division into stages."""

from __future__ import annotations

from kfp_mindspore.lm.bundle.causal import import_source

__all__ = ["import_source"]
