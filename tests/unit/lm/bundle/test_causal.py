"""A directory becomes a bundle, its runner answers as verified, and its export equals the source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import CorruptBundleError
from kfp_mindspore.formats.bundle import WEIGHTS_FILE, ModelBundle
from kfp_mindspore.lm.bundle.causal import read_source
from kfp_mindspore.lm.serving import runner
from tests.support.language.numpy_decoder import write_tokenizer

pytestmark = pytest.mark.mindspore


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("lm") / "source"
    directory.mkdir()
    size = write_tokenizer(directory / "tokenizer.json")
    config: dict[str, Any] = {
        "model_type": "qwen2", "vocab_size": size, "hidden_size": 16, "num_hidden_layers": 1, "hidden_act": "silu",
        "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24, "max_position_embeddings": 64,
        "tie_word_embeddings": True, "eos_token_id": 2,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "chat_template.jinja").write_text("{{ messages[0].content }}")
    random = np.random.default_rng(4)
    layer = "model.layers.0"
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (size, 16), "model.norm.weight": (16,)}
    shapes |= {f"{layer}.{name}.weight": (16,) for name in ("input_layernorm", "post_attention_layernorm")}
    for name, rows in (("q_proj", 16), ("k_proj", 8), ("v_proj", 8)):
        shapes |= {f"{layer}.self_attn.{name}.weight": (rows, 16), f"{layer}.self_attn.{name}.bias": (rows,)}
    shapes |= {f"{layer}.self_attn.o_proj.weight": (16, 16), f"{layer}.mlp.down_proj.weight": (16, 24)}
    shapes |= {f"{layer}.mlp.{name}.weight": (24, 16) for name in ("gate_proj", "up_proj")}
    tensors = {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.fixture(scope="module")
def bundle(source: Path) -> Path:
    path = source.parent / "bundle"
    assert run(["lm", "import", str(source), "-o", str(path)]) == 0
    return path


def test_loaded_runner_gives_verified_logits(bundle: Path) -> None:
    signature = ModelBundle.open(bundle).signature
    assert signature.metadata == {"kind": "causal-lm", "architecture": "qwen2", "max_length": "64"}
    assert signature.verified["max_abs_diff"] <= 1e-5
    prompts = np.load(bundle / "prompts.npz")
    config, weights = runner.read_network(bundle)
    loaded = runner.CausalRunner(config, weights, slots=1, max_length=64)
    logits = loaded.prefill(0, prompts["ids.0"], 0)
    np.testing.assert_allclose(logits, prompts["logits.0"], atol=1e-5)
    assert logits.argmax() == prompts["greedy.0"][0]


def test_export_equals_source(source: Path, bundle: Path, tmp_path: Path) -> None:
    assert run(["lm", "export", str(bundle), "-o", str(tmp_path / "exported")]) == 0
    expected, found = (load_file(path / "model.safetensors") for path in (source, tmp_path / "exported"))
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
    written = json.loads((tmp_path / "exported" / "config.json").read_text())
    original = json.loads((source / "config.json").read_text())
    assert {name: written[name] for name in original} == original
    assert json.loads((tmp_path / "exported" / "tokenizer_config.json").read_text())["eos_token"] == "<|im_end|>"


@pytest.mark.parametrize("command", [["export"], ["split", "--layer", "1"], ["import"]], ids=lambda words: words[0])
def test_output_does_not_replace_other_directory(
    source: Path, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    data = tmp_path / "first"
    data.mkdir()
    (data / "config.json").write_text("{}")
    name, *flags = command
    model, output = source if name == "import" else bundle, tmp_path if name == "split" else data
    assert run(["lm", name, str(model), "-o", str(output), *flags]) == 2
    assert f"{data}: is a directory with other content" in capsys.readouterr().err
    assert [file.name for file in data.iterdir()] == ["config.json"]


def test_gguf_export_is_read_again(source: Path, bundle: Path, tmp_path: Path) -> None:
    expected = read_source(source)
    assert run(["lm", "export", str(bundle), "-o", str(tmp_path / "a.gguf")]) == 0
    found = read_source(tmp_path / "a.gguf")
    assert all(np.array_equal(found.weights[name], array) for name, array in expected.weights.items())
    assert run(["lm", "export", str(bundle), "-o", str(tmp_path / "b"), "--format", "gguf", "--dtype", "float16"]) == 0
    halved = read_source(tmp_path / "b").weights
    np.testing.assert_array_equal(halved["embedding"], expected.weights["embedding"].astype(np.float16))
    np.testing.assert_array_equal(halved["norm.weight"], expected.weights["norm.weight"])
    assert run(["lm", "export", str(bundle), "-o", str(tmp_path / "b")]) == 2


def test_changed_weights_are_refused(bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in bundle.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    data = bytearray((copy / WEIGHTS_FILE).read_bytes())
    data[-1] ^= 1
    (copy / WEIGHTS_FILE).write_bytes(data)
    with pytest.raises(CorruptBundleError, match=WEIGHTS_FILE):
        ModelBundle.open(copy)


def test_configuration_that_does_not_fit_weights_is_refused(bundle: Path, tmp_path: Path) -> None:
    for file in bundle.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    values = json.loads((tmp_path / "network.json").read_text())
    (tmp_path / "network.json").write_text(json.dumps({**values, "hidden": 32}))
    with pytest.raises(CorruptBundleError, match=r"up\.weight: shape must be \(64, 16\), got \(48, 16\)"):
        runner.read_network(tmp_path)
