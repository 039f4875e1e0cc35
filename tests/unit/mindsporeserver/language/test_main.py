"""The server's choices by the kinds of its bundles."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindsporeserver.models.repository import Sources
from tests.support.numpy_decoder import write_decoder_bundle

pytestmark = pytest.mark.mindspore


def test_instruction_set_is_limited_beside_other_models_only(tmp_path: Path) -> None:
    from mindsporeserver.main import has_only_language_models

    for name, kind in (("first", "causal-lm"), ("second", "causal-lm"), ("digits", "graph")):
        write_decoder_bundle(tmp_path / name, kind)
    language = {name: tmp_path / name for name in ("first", "second")}
    assert has_only_language_models(Sources(language))
    assert not has_only_language_models(Sources({**language, "digits": tmp_path / "digits"}))
    assert not has_only_language_models(Sources(repository=tmp_path))
