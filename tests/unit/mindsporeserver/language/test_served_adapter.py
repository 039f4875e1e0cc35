"""A real decoder's server answers for an adapter as the merged bundle does."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import httpx
import numpy as np
import pytest
from openai import OpenAI
from safetensors.numpy import save_file

from tests.support.language.language_servers import LanguageServer
from tests.support.language.numpy_decoder import TEMPLATE, write_tokenizer

pytestmark = [pytest.mark.mindspore, pytest.mark.slow]

MODULES = {"q_proj": 16, "v_proj": 8, "output_proj": 16}


def make_factors(rank: int) -> dict[str, np.ndarray]:
    random, factors = np.random.default_rng(4), {}
    for layer in range(2):
        for module, height in MODULES.items():
            prefix = f"layers.{layer}.{module}"
            factors[f"{prefix}.lora_A"] = random.normal(0, 0.4, (rank, 16)).astype(np.float32)
            factors[f"{prefix}.lora_B"] = random.normal(0, 0.4, (height, rank)).astype(np.float32)
    return factors


def test_adapters_text_equals_merged_bundles(tmp_path: Path) -> None:
    from kfp_mindspore.formats.bundle import Signature, write_bundle
    from kfp_mindspore.lm.bundle.causal import write_model
    from kfp_mindspore.lm.network.decoder import DecoderConfig, list_weights
    from kfp_mindspore.lm.network.lora import LoraConfig, merge_adapter
    from kfp_mindspore.lm.sources.model import SourceModel
    from kfp_mindspore.lm.sources.peft import write_adapter

    size = write_tokenizer(tmp_path / "tokenizer.json")
    config, random = DecoderConfig(size, 16, 2, 4, 2, 4, 24, 64), np.random.default_rng(3)
    shapes = list_weights(config).items()
    weights = {name: random.normal(len(shape) == 1, 0.3, shape).astype(np.float32) for name, shape in shapes}
    lora = LoraConfig(4, 8.0, tuple(MODULES))
    write_adapter(tmp_path / "adapter", make_factors(4), lora)
    write_adapter(tmp_path / "wide", make_factors(5), dataclasses.replace(lora, lora_rank=5))
    tokenizer = (tmp_path / "tokenizer.json").read_text()
    merged = merge_adapter(config, weights, make_factors(4), lora)
    model = SourceModel(config, merged, tokenizer, TEMPLATE, {"eos_token_id": 2}, "llama")
    write_model(model, tmp_path / "merged", subject="merged")
    with write_bundle(tmp_path / "base") as writer:
        for name in ("network.json", "tokenizer.json", "generation.json"):
            shutil.copy(tmp_path / "merged" / name, writer.directory)
        save_file(weights, writer.directory / "weights.safetensors")
        writer.sign(Signature((), (), "2.9.0", metadata={"kind": "causal-lm", "max_length": "64"}))
    prompts = np.load(tmp_path / "merged/prompts.npz")
    greedy = [token for token in prompts["greedy.0"].tolist() if token > 2]

    flags = ("--max-num-seqs=1", "--max-lora-rank=4", "--max-loras=2", "--allow-runtime-lora-updating=true")
    modules = ("--lora-modules", f"tuned={tmp_path / 'adapter'}")
    with LanguageServer(tmp_path, *modules, *flags, bundle=tmp_path / "base") as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0)

        def complete(name: str) -> str:
            response = client.completions.create(
                model=name,
                prompt=prompts["ids.0"].tolist(),
                max_tokens=8,
                temperature=0,
                extra_body={"ignore_eos": True},
            )
            return response.choices[0].text

        expected = httpx.post(f"{server.url}/detokenize", json={"tokens": greedy}).json()["prompt"]
        assert complete("tuned") == expected
        assert complete("chat") != expected
        assert ", adapters 0 MiB" in server.log.read_text()
        for name, message in (("wide", "r: must be at most 4 (--max-lora-rank), got 5"), ("base", "not a readable")):
            body = {"lora_name": name, "lora_path": str(tmp_path / name)}
            response = httpx.post(f"{server.url}/v1/load_lora_adapter", json=body)
            assert response.status_code == 400
            assert message in response.json()["error"]["message"]
        body = {"lora_name": "again", "lora_path": str(tmp_path / "adapter")}
        assert httpx.post(f"{server.url}/v1/load_lora_adapter", json=body).status_code == 200
        assert complete("again") == expected
