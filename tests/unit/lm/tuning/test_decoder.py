"""Fine-tuning learns, its losses are means over tokens, and adapters merge into the same network."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor, nn
from tokenizers import Tokenizer, models, pre_tokenizers

from kfp_mindspore.errors import CorruptBundleError, UserError, ValidationError
from kfp_mindspore.formats.bundle import Signature, write_bundle
from kfp_mindspore.lm.bundle.causal import read_model, write_model
from kfp_mindspore.lm.network.decoder import DecoderConfig, list_weights
from kfp_mindspore.lm.network.lora import LoraConfig, merge_adapter
from kfp_mindspore.lm.sources.model import SourceModel
from kfp_mindspore.lm.sources.peft import read_adapter, write_adapter
from kfp_mindspore.lm.text.data import LanguageModelData
from kfp_mindspore.lm.tuning.decoder import TrainedDecoder, build_arrays
from kfp_mindspore.training import TrainingConfig, fit

pytestmark = pytest.mark.mindspore

CONFIG = DecoderConfig(40, 16, 1, 4, 2, 4, 24, 16)
LORA = LoraConfig(4, 8.0, ("q_proj", "v_proj", "output_proj"))
EXAMPLES = 10


def make_weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    shapes = list_weights(CONFIG).items()
    return {name: random.normal(len(shape) == 1, 0.3, shape).astype(np.float32) for name, shape in shapes}


def make_data() -> LanguageModelData:
    """Answers repeat their prompts, of 1 to 3 tokens."""
    random = np.random.default_rng(4)
    examples = []
    for size in random.integers(1, 4, EXAMPLES):
        prompt = random.integers(2, 40, size)
        examples.append((np.concatenate([prompt, prompt, [1]]).astype(np.int32), np.arange(2 * size + 1) >= size))
    return LanguageModelData.pack(examples, length=8)


def compute_loss(network: TrainedDecoder, data: LanguageModelData) -> float:
    arrays = [Tensor(array) for array in build_arrays(data).values()]
    return float(network(*arrays).asnumpy())


def repeat(data: LanguageModelData, place: Any) -> LanguageModelData:
    """Return as many windows as the data have, each with the tokens at a place: one shape compiles once."""
    size, length = data.ids.shape

    def fill(array: np.ndarray) -> np.ndarray:
        tokens = array[place]
        return np.tile(np.pad(tokens, (0, length - len(tokens))), (size, 1))

    return LanguageModelData(
        fill(data.ids), fill(data.targets), fill(data.weights), fill(data.positions), fill(data.segments)
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainedDecoder, LanguageModelData, float, float]:
    data = make_data()
    network = TrainedDecoder(CONFIG, make_weights(), tokens_per_window=float(data.weights.sum() / len(data)), lora=LORA)
    before = compute_loss(network, data)
    optimizer = nn.Adam(network.trainable_params(), 0.03)
    config = TrainingConfig(
        epochs=60,
        batch_size=len(data),
        checkpoint_dir=tmp_path_factory.mktemp("ckpt"),
        verbose=False,
        export_check="off",
    )
    fit(network, build_arrays(data), optimizer=optimizer, config=config)
    return network, data, before, compute_loss(network, data)


def test_adapter_learns_and_base_is_unchanged(
    trained: tuple[TrainedDecoder, LanguageModelData, float, float],
) -> None:
    network, _, before, after = trained
    assert after < 0.8 * before
    for weight, (name, array) in zip(network.base, make_weights().items(), strict=True):
        assert weight.name == name
        np.testing.assert_array_equal(weight.asnumpy(), array)


def test_merged_network_has_adapters_loss(trained: tuple[TrainedDecoder, LanguageModelData, float, float]) -> None:
    network, data, _, after = trained
    merged = TrainedDecoder(CONFIG, network.get_weights(), tokens_per_window=network.tokens_per_window)
    assert compute_loss(merged, data) == pytest.approx(after, rel=1e-5)


def test_parts_weighted_by_windows_give_mean_over_tokens(
    trained: tuple[TrainedDecoder, LanguageModelData, float, float],
) -> None:
    network, data, _, after = trained
    assert len(set(data.weights.sum(1).tolist())) > 1
    parts = [compute_loss(network, repeat(data, row)) for row in range(len(data))]
    assert np.mean(parts) == pytest.approx(after, rel=1e-5)


def test_window_does_not_change_loss(trained: tuple[TrainedDecoder, LanguageModelData, float, float]) -> None:
    network, data, _, after = trained
    total = 0.0
    for row in range(len(data)):
        for segment in range(1, data.segments[row].max() + 1):
            total += compute_loss(network, repeat(data, (row, data.segments[row] == segment)))
    assert total / len(data) == pytest.approx(after, rel=1e-4)


def test_adapter_is_read_as_written(
    trained: tuple[TrainedDecoder, LanguageModelData, float, float], tmp_path: Path
) -> None:
    adapter = trained[0].get_adapter()
    write_adapter(tmp_path / "adapter", adapter, LORA)
    found, lora = read_adapter(tmp_path / "adapter", CONFIG)
    assert lora == LORA
    assert found.keys() == adapter.keys()
    merged = merge_adapter(CONFIG, make_weights(), found, lora)
    for name, array in trained[0].get_weights().items():
        np.testing.assert_array_equal(merged[name], array)


def test_trained_weights_are_written_as_bundle(
    trained: tuple[TrainedDecoder, LanguageModelData, float, float], tmp_path: Path
) -> None:
    tokenizer = Tokenizer(models.WordLevel({"?": 0, "<eos>": 1}, "?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    model = SourceModel(CONFIG, make_weights(), tokenizer.to_str(), "{{ messages }}", {"eos_token_id": 1}, "llama")
    write_model(model, tmp_path / "base", subject="base")
    base = read_model(tmp_path / "base")
    assert (base.config, base.template, base.generation, base.architecture) == (
        *(CONFIG, "{{ messages }}"),
        *({"eos_token_id": 1}, "llama"),
    )
    tuned = dataclasses.replace(base, weights=trained[0].get_weights())
    assert write_model(tuned, tmp_path / "tuned", subject="tuned") <= 1e-5
    for name, array in read_model(tmp_path / "tuned").weights.items():
        np.testing.assert_array_equal(array, tuned.weights[name])


def test_bundle_of_another_kind_is_refused(tmp_path: Path) -> None:
    with write_bundle(tmp_path / "other") as writer:
        (writer.directory / "model.mindir").write_bytes(b"")
        writer.sign(Signature((), (), "2.9.0"))
    with pytest.raises(UserError, match=r"metadata\.kind: must be causal-lm, got graph"):
        read_model(tmp_path / "other")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("use_dora", True, "use_dora: must be False, got True"),
        ("target_modules", ["gate_proj"], "target_modules: gate_proj: must be one of q_proj, k_proj, v_proj, o_proj"),
        ("r", 0, "lora_rank: must be >= 1, got 0"),
        ("r", "8", "r: must be a number, got '8'"),
        ("lora_dropout", "0.1", "lora_dropout: must be a number, got '0.1'"),
        ("target_modules", "all-linear", "target_modules: must be a list, got 'all-linear'"),
        ("rank_pattern", {"q_proj": 4}, "rank_pattern: must be False, got {'q_proj': 4}"),
    ],
)
def test_unsupported_adapter_is_refused(field: str, value: object, message: str, tmp_path: Path) -> None:
    directory = tmp_path / "adapter"
    write_adapter(directory, {}, LORA)
    file = directory / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), field: value}))
    with pytest.raises(ValidationError) as error:
        read_adapter(directory, CONFIG)
    assert message in str(error.value)


def test_incomplete_adapter_is_refused(tmp_path: Path) -> None:
    write_adapter(tmp_path / "adapter", {}, LORA)
    with pytest.raises(CorruptBundleError, match=r"q_proj\.lora_A\.weight: shape must be \(4, 16\), got nothing"):
        read_adapter(tmp_path / "adapter", CONFIG)
    with pytest.raises(CorruptBundleError, match="not a readable adapter"):
        read_adapter(tmp_path, CONFIG)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers.0.q_proj.lora_A": np.full((4, 16), np.inf, np.float32)}, "must be finite, got NaN or infinity"),
        ({"layers.0.q_proj.lora_B": np.zeros((8, 4), np.float32)}, r"shape must be \(16, 4\), got \(8, 4\)"),
        ({"layers.1.q_proj.lora_A": np.zeros((4, 16), np.float32)}, "not an update of target_modules in 1 layers"),
    ],
)
def test_wrong_tensors_are_refused(change: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    network = TrainedDecoder(CONFIG, make_weights(), tokens_per_window=1.0, lora=LORA)
    write_adapter(tmp_path / "adapter", network.get_adapter() | change, LORA)
    with pytest.raises(CorruptBundleError, match=message):
        read_adapter(tmp_path / "adapter", CONFIG)


def test_dropout_changes_training_and_no_evaluation(tmp_path: Path) -> None:
    data, dropping = make_data(), dataclasses.replace(LORA, lora_dropout=0.5)
    trained, evaluated = {}, {}
    for lora in (LORA, dropping):
        network = TrainedDecoder(CONFIG, make_weights(), tokens_per_window=1.0, lora=lora)
        fit(
            network,
            build_arrays(data),
            optimizer=nn.Adam(network.trainable_params(), 0.03),
            config=TrainingConfig(epochs=3, batch_size=len(data), verbose=False, export_check="off"),
        )
        trained[lora], adapter = network.get_weights(), network.get_adapter()
        network.set_train(False)
        evaluated[lora] = compute_loss(network, data)
        merged = TrainedDecoder(CONFIG, network.get_weights(), tokens_per_window=1.0)
        assert evaluated[lora] == pytest.approx(compute_loss(merged, data), rel=1e-5)
        assert compute_loss(network, data) == evaluated[lora]
    name = "layers.0.qkv.weight"
    assert np.abs(trained[LORA][name] - trained[dropping][name]).max() > 1e-3
    network.set_train(True)
    assert len({compute_loss(network, data) for _ in range(3)}) == 3
    write_adapter(tmp_path / "adapter", adapter, dropping)
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["lora_dropout"] == 0.5
    assert read_adapter(tmp_path / "adapter", CONFIG)[1] == dropping


def test_adapter_in_16_bits_is_widened(tmp_path: Path) -> None:
    adapter = TrainedDecoder(CONFIG, make_weights(), tokens_per_window=1.0, lora=LORA).get_adapter()
    half: Any = {name: array.astype(np.float16) for name, array in adapter.items()}
    write_adapter(tmp_path / "adapter", half, LORA)
    for name, array in read_adapter(tmp_path / "adapter", CONFIG)[0].items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, half[name])


def test_adapters_configuration_is_checked() -> None:
    with pytest.raises(ValidationError) as error:
        LoraConfig(0, -1.0, ("gate",), 1.0)
    for field in (
        "lora_rank: must be >= 1",
        "lora_alpha: must be > 0",
        "lora_dropout: must be",
        "lora_attn_modules: must be some of",
    ):
        assert field in str(error.value)
