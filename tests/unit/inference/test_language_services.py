"""Language models as services: smoke test, canary by adapters, formats of manifests."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.errors import ProcessFailedError
from kfp_mindspore.formats.bundle import ModelBundle, Signature, write_bundle
from kfp_mindspore.inference import InferenceClient, LocalServingBackend, Service, build_inference_service, client
from kfp_mindspore.inference.language_smoke import compare_prompts
from kfp_mindspore.inference.manifest import build_canary_graph
from kfp_mindspore.inference.rest import request_json
from kfp_mindspore.inference.runtime import build_serving_runtime
from kfp_mindspore.inference.service import DeploymentOptions, ServiceState, ServiceStatus
from kfp_mindspore.inference.smoke import count_samples
from kfp_mindspore.steps.deployment import register
from kfp_mindspore.steps.deployment.deploy import Deployment, deploy_model
from tests.support.http_server import Handler, Server


def test_format_selects_runtime_of_language_models() -> None:
    service = Service("chat", "hf://org/model", server_args=["--max-num-seqs=4"], model_format="mindspore-lm")
    model = build_inference_service(service)["spec"]["predictor"]["model"]
    spec = build_serving_runtime("server", model_format="mindspore-lm")["spec"]
    assert model["modelFormat"]["name"] == spec["supportedModelFormats"][0]["name"] == "mindspore-lm"
    assert model["protocolVersion"] in spec["protocolVersions"]
    assert model["storageUri"] == "hf://org/model"
    nodes = build_canary_graph(service, 10, ("http://a", "http://b"))["spec"]["nodes"]
    assert nodes["root"]["steps"][0] == {"nodeName": "chat", "condition": "messages"}
    assert nodes["chat"]["steps"][1] == {
        "name": "canary",
        "serviceUrl": "http://b/openai/v1/chat/completions",
        "weight": 10,
    }


def write_embedding_bundle(directory: Path) -> ModelBundle:
    with write_bundle(directory) as writer:
        (writer.directory / "weights.safetensors").write_bytes(b"")
        vectors = {"ids.0": np.array([3, 4], np.int32), "embedding.0": np.array([0.6, 0.8], np.float32)}
        np.savez(writer.directory / "prompts.npz", **vectors)
        writer.sign(Signature((), (), "2.9.0", metadata={"kind": "embedding"}))
    return ModelBundle.open(directory)


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ({"data": [{"embedding": [0.6, 0.8]}]}, ""),
        ({"data": [{"embedding": [0.6, 0.9]}]}, "prompt 0 differs by 0.1"),
        ({"data": [{"embedding": [0.6]}]}, "prompt 0 differs by inf"),
        ({"data": []}, "the response has no data.0.embedding"),
    ],
)
def test_embeddings_are_compared(tmp_path: Path, response: Any, message: str) -> None:
    bundle = write_embedding_bundle(tmp_path / "model")
    assert count_samples(bundle) == 1

    class Embeddings(Handler):
        def do_POST(self) -> None:
            self.read_body()
            self.respond(200, json.dumps(response).encode())

    with Server(Embeddings) as server:
        if message:
            with pytest.raises(ProcessFailedError, match=message):
                compare_prompts(server.url, "search", bundle, 1, 1e-5, 5)
        else:
            (answer,) = compare_prompts(server.url, "search", bundle, 1, 1e-5, 5)
            assert answer.text == "0.6, 0.8, …"


@pytest.mark.parametrize(
    ("logprobs", "generated", "message"),
    [
        # vLLM's form, and llama.cpp's; log(3/4) is expected.
        ({"token_logprobs": [-0.288, -9.0]}, 2, ""),
        ({"content": [{"logprob": -0.35}]}, 1, ""),
        ({"content": [{"logprob": -0.6}]}, 1, "prompt 0 differs by 0.3"),
        ({"content": [{"id": 1, "logprob": -0.6}, {"id": 0, "logprob": -0.1}]}, 2, "prompt 0 differs by 0.3"),
        # llama.cpp does not list the first of two tokens when it is a part of a character.
        ({"content": [{"id": 0, "logprob": -0.6}]}, 2, ""),
        ({"content": [{"id": 0, "logprob": -0.6}]}, 1, "prompt 0 differs by 0.3"),
        ({"content": [{"id": 2, "logprob": -0.6}]}, 2, "prompt 0 differs by 0.3"),
        ({"content": None}, 2, "the response has no choices.0.logprobs.content.0"),
        (None, 2, "the response has no choices.0.logprobs"),
    ],
)
def test_another_servers_first_token_is_compared(tmp_path: Path, logprobs: Any, generated: int, message: str) -> None:
    with write_bundle(tmp_path / "model") as writer:
        (writer.directory / "weights.safetensors").write_bytes(b"")
        logits = np.log(np.array([1, 3], np.float32))
        prompt = {"ids.0": np.array([0, 1], np.int32), "logits.0": logits, "greedy.0": np.array([1, 0], np.int32)}
        np.savez(writer.directory / "prompts.npz", **prompt)
        writer.sign(Signature((), (), "2.9.0", metadata={"kind": "causal"}))
    bundle, paths = ModelBundle.open(tmp_path / "model"), []

    class Completions(Handler):
        def do_POST(self) -> None:
            paths.append(self.path)
            self.read_body()
            usage = {"completion_tokens": generated}
            self.respond(200, json.dumps({"choices": [{"text": "a", "logprobs": logprobs}], "usage": usage}).encode())

    with Server(Completions) as server:
        if message:
            with pytest.raises(ProcessFailedError, match=message):
                compare_prompts(server.url, "chat", bundle, 1, 1e-5, 5, "/v1")
        else:
            compare_prompts(server.url, "chat", bundle, 1, 1e-5, 5, "/v1")
    assert paths == ["/v1/completions"]


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({}, ""),
        ({"model_format": "mindspore-lm"}, ""),
        ({"model_format": "gguf"}, "/openai/v1"),
        ({"model_format": "gguf", "openai_path": "/v1"}, "/v1"),
    ],
)
def test_status_names_another_servers_path(options: dict[str, str], path: str) -> None:
    status = ServiceStatus("chat", "team", ServiceState.READY, "http://chat", "", "s3://b/m", options=options)
    assert status.other_openai_path == path


def test_language_model_is_registered_by_its_bundles_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_embedding_bundle(tmp_path / "model")
    found: list[register.Registration] = []

    async def record(registry: str, registration: register.Registration) -> tuple[str, str, str]:
        found.append(registration)
        return "1", "2", "v1"

    monkeypatch.setattr(register, "_register", record)
    bundle: Any = SimpleNamespace(path=str(tmp_path / "model"), uri="s3://models/search")
    version = register.register_bundle(bundle, "search", registry="http://registry")[2]
    assert len(version) == 12
    assert found[0].model_format == "mindspore-lm"
    assert str((found[0].properties or {})["sha256"]).startswith(version)


@pytest.mark.mindspore
@pytest.mark.slow
def test_encoder_decoder_is_deployed_and_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kfp_mindspore.lm.bundle.causal import import_model
    from tests.support.language.tiny_t5 import write_t5

    monkeypatch.delenv("KFP_MINDSPORE_LEASE", raising=False)
    local = InferenceClient(LocalServingBackend(tmp_path / "home"))
    monkeypatch.setattr(client, "create_serving_backend", lambda name=None: local.backend)
    write_t5(tmp_path / "source")
    import_model(tmp_path / "source", tmp_path / "model")
    bundle: Any = SimpleNamespace(path=str(tmp_path / "model"), uri=str(tmp_path / "model"))
    try:
        deployed = deploy_model(
            bundle, Service("rewriter", bundle.path), DeploymentOptions(smoke_samples=1, wait_seconds=300)
        )
        assert deployed.verdict.startswith("version 1 serves; 1 samples tested")
    finally:
        local.delete("rewriter")


@pytest.mark.mindspore
@pytest.mark.slow
def test_canary_has_another_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kfp_mindspore.lm.bundle.causal import import_model
    from kfp_mindspore.lm.network.lora import LoraConfig
    from kfp_mindspore.lm.sources.peft import write_adapter
    from tests.support.language.tiny_language_model import WIDTH, write_source

    monkeypatch.delenv("KFP_MINDSPORE_LEASE", raising=False)
    local = InferenceClient(LocalServingBackend(tmp_path / "home"))
    monkeypatch.setattr(client, "create_serving_backend", lambda name=None: local.backend)
    import_model(write_source(tmp_path / "source"), tmp_path / "model")
    random = np.random.default_rng(1)
    for name in ("first", "second"):
        shapes = {"lora_A": (2, WIDTH), "lora_B": (WIDTH, 2)}
        factors = {
            f"layers.{layer}.q_proj.{part}": random.normal(0, 0.4, shape).astype(np.float32)
            for layer in range(2)
            for part, shape in shapes.items()
        }
        write_adapter(tmp_path / name, factors, LoraConfig(2, 4.0, ("q_proj",)))
    bundle: Any = SimpleNamespace(path=str(tmp_path / "model"), uri=str(tmp_path / "model"))

    def deploy(adapter: str, canary: int = 0) -> Deployment:
        flags = ["--max-num-seqs=1", "--max-loras=1", f"--lora-modules=support={tmp_path / adapter}"]
        service = Service("chat", bundle.path, server_args=flags)
        return deploy_model(bundle, service, DeploymentOptions(smoke_samples=5, wait_seconds=300, canary=canary))

    try:
        first = deploy("first")
        assert first.verdict.startswith("version 1 serves; 2 samples tested")
        assert first.prediction
        root = request_json("GET", f"{first.url}/openai/v1/models/support")["root"]
        assert root == str(tmp_path / "first")
        second = deploy("second", canary=20)
        assert second.version == 2
        assert "agreement 1.0000" in second.verdict
        root = request_json("GET", f"{second.url}/openai/v1/models/support")["root"]
        assert root == str(tmp_path / "second")
    finally:
        local.delete("chat")
