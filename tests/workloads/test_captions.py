"""Locked-text tuning with MiniLM, fetched by pip: combinations that no training picture has are found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kfp_mindspore.lm.bundle.causal import import_model
from kfp_mindspore.mindir.verify import verify_bundle
from kfp_mindspore.vision.bundle import TextEncoder, build_classifier
from kfp_mindspore.vision.drawings import COLOURS, draw_pictures
from tests.support.language.demo_models import get_demo_weights
from tests.support.unseen_combinations import compare, embed

pytestmark = [pytest.mark.workload, pytest.mark.long, pytest.mark.mindspore, pytest.mark.timeout(1800)]


def test_unseen_combinations_are_found(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    import_model(get_demo_weights(pytestconfig, "minilm"), tmp_path / "minilm")
    found = compare(tmp_path / "minilm", tmp_path)
    dual, baselines = found["dual encoder"], [found[name] for name in ("nearest picture", "classifier", "chance")]
    assert dual["accuracy"] >= 0.8, found
    assert dual["accuracy"] >= max(values["accuracy"] for values in baselines) + 0.1, found
    assert dual["accuracy_of_all"] >= max(values["accuracy_of_all"] for values in baselines) + 0.1, found
    assert dual["recall_at_5"] >= max(values["recall_at_5"] for values in baselines), found

    # The text tower is MiniLM's, unchanged.
    model = tmp_path / "model"
    verify_bundle(model, outputs=True)
    drawings = [drawing for drawing in draw_pictures(4, seed=9) if drawing.held_out]
    texts = TextEncoder.open(model).embed([f"a {colour} thing" for colour in COLOURS])
    named = [list(COLOURS)[index] for index in (embed(model, drawings) @ texts.T).argmax(1)]
    assert np.mean([name in drawing.caption for name, drawing in zip(named, drawings, strict=True)]) >= 0.8
    assert build_classifier(model, list(COLOURS), "a {} thing", tmp_path / "classes") <= 1e-5
