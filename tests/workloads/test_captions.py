"""Locked-text tuning with MiniLM, fetched by pip: combinations that no training picture has are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfp_mindspore.lm.bundle.causal import import_model
from kfp_mindspore.vision.bundle import build_classifier
from kfp_mindspore.vision.drawings import COLOURS
from tests.support.language.demo_models import get_demo_weights
from tests.support.unseen_combinations import compare

pytestmark = [pytest.mark.workload, pytest.mark.long, pytest.mark.mindspore, pytest.mark.timeout(1800)]


def test_unseen_combinations_are_found(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    import_model(get_demo_weights(pytestconfig, "minilm"), tmp_path / "minilm")
    found = compare(tmp_path / "minilm", tmp_path)
    dual, baselines = found["dual encoder"], [found[name] for name in ("nearest picture", "classifier", "chance")]
    for name, least in (("accuracy", 0.6), ("recall_at_5", 0.9), ("accuracy_of_all", 0.15)):
        assert dual[name] >= max(least, 0.1 + max(values[name] for values in baselines)), found
    assert build_classifier(tmp_path / "model", list(COLOURS), "a {} thing", tmp_path / "classes") <= 1e-5
