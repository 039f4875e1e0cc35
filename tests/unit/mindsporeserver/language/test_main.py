"""The server's choices by the kinds of its bundles."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfp_mindspore.errors import UserError
from mindsporeserver.models.repository import Sources
from mindsporeserver.options import build_parser, read_options
from tests.support.language.numpy_decoder import write_decoder_bundle

pytestmark = pytest.mark.mindspore


def test_instruction_set_is_limited_beside_other_models_only(tmp_path: Path) -> None:
    from mindsporeserver.main import has_only_language_models

    for name, kind in (("first", "causal-lm"), ("second", "causal-lm"), ("digits", "graph")):
        write_decoder_bundle(tmp_path / name, kind)
    language = {name: tmp_path / name for name in ("first", "second")}
    assert has_only_language_models(Sources(language))
    assert not has_only_language_models(Sources({**language, "digits": tmp_path / "digits"}))
    assert not has_only_language_models(Sources(repository=tmp_path))


@pytest.mark.parametrize(
    ("kind", "flags", "message"),
    [
        (
            "causal-lm",
            ["--next-stage=a:1"],
            "--next-stage: needs one model of the kind causal-lm-first, found causal-lm",
        ),
        ("causal-lm-first", [], "--model_dir: a model of the kind causal-lm-first needs a second server"),
        ("causal-lm-first", ["--next-stage=a:1", "--lora-modules=a=b"], "--lora-modules: a model's stages have no"),
        ("causal-lm-second", ["--workers=2"], "--workers: must be 1 for a model's stage, which has one cache, got 2"),
    ],
)
def test_flags_that_a_stage_lacks_are_refused(tmp_path: Path, kind: str, flags: list[str], message: str) -> None:
    from mindsporeserver.main import check_stages

    write_decoder_bundle(tmp_path / "model", kind)
    options = read_options(build_parser().parse_args(flags))
    with pytest.raises(UserError, match=message):
        check_stages(options, Sources({"model": tmp_path / "model"}))
