"""The rewriter trained from scratch: dates and numbers in words become their normal form."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from kfp_mindspore.inference import InferenceClient, LocalServingBackend
from kfp_mindspore.runs import run_local

pytestmark = [pytest.mark.workload, pytest.mark.long, pytest.mark.mindspore, pytest.mark.timeout(600)]


def test_rewriter_answers_held_out_prompts(local_home: Path) -> None:
    client = InferenceClient(LocalServingBackend(local_home))
    try:
        result = run_local("t5_rewrite", {"generated": 64}, home=local_home, keep=True)
        assert result.state == "succeeded"
        evaluated = result.steps["evaluate-language-model"].outputs
        assert evaluated["passed"] is True
        assert evaluated["value"] >= 0.9
        assert evaluated["base_value"] == 0
        body = {"model": "rewriter", "prompt": "the third of March 2021"}
        response = httpx.post(f"{client.get('rewriter').url}/openai/v1/completions", json=body, timeout=120)
        assert response.status_code == 200, response.text
        assert response.json()["choices"][0]["text"] == "2021-03-03"
    finally:
        client.delete("rewriter")
