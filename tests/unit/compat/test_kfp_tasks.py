from __future__ import annotations

import inspect


def test_kfp_local_has_no_callbacks() -> None:
    """If this fails, kfp.local may report its tasks itself: replace kfp_tasks."""
    from kfp import local

    assert set(inspect.signature(local.init).parameters) == {
        "runner",
        "pipeline_root",
        "workspace_root",
        "raise_on_error",
        "enable_caching",
        "cache_root",
    }
