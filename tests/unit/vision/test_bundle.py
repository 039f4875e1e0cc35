"""Vision bundles: files, equality of graphs and networks, classes by words, refused sources and labels."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kfp_mindspore.errors import CorruptBundleError, UserError
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.mindir.graph.runner import ModelRunner
from kfp_mindspore.mindir.verify import verify_bundle
from kfp_mindspore.transform.base import fill_objects
from kfp_mindspore.vision.bundle import TextEncoder, build_classifier, import_source
from kfp_mindspore.vision.network import list_image_weights
from kfp_mindspore.vision.sources.models import interpolate_positions, parse_images
from tests.support.tiny_vision import LENGTH, SIDE, write_clip, write_dual, write_vit

pytestmark = pytest.mark.mindspore

DINO = {"model_type": "dinov2", "image_size": 56, "hidden_size": 12, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("vision")
    write_clip(root / "clip-source")
    write_dual(root / "siglip-source", "siglip")
    write_vit(root / "vit-source")
    names = ("clip", "siglip", "vit")
    for name in names:
        assert import_source(str(root / f"{name}-source"), root / name) <= 1e-5
    return {name: root / name for name in names}


def draw(height: int = 40, width: int = 30, *, seed: int = 1) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def predict(bundle: Path, *images: bytes) -> Any:
    with ModelRunner(bundle) as runner:
        return runner.predict({"image": fill_objects(list(images))})


@pytest.mark.slow
def test_classifier_is_ordinary_bundle(bundles: dict[str, Path]) -> None:
    verified = verify_bundle(bundles["vit"], outputs=True)
    assert verified.samples == 32
    signature = ModelBundle.open(bundles["vit"]).signature
    assert (signature.kind, signature.task, signature.labels) == ("graph", "classification", ("cat", "dog", "owl"))
    assert [spec.shape for spec in signature.inputs] == [(-1, 3, SIDE, SIDE)]
    found = predict(bundles["vit"], *(draw(seed=seed) for seed in range(6)))
    assert found["output"].shape == (6, 3)
    names = [signature.labels[row.argmax()].encode() for row in found["output"]]
    assert found["label"].tolist() == names


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_dual_encoder_has_two_graphs_in_one_space(bundles: dict[str, Path], name: str) -> None:
    opened = ModelBundle.open(bundles[name])
    assert opened.signature.kind == "dual-encoder"
    assert {"model.mindir", "text.mindir", "tokenizer.json", "network.json", "prompts.npz"} <= set(
        opened.signature.files
    )
    images = predict(bundles[name], draw(), draw(9, 50))["output"]
    texts = TextEncoder.open(bundles[name]).embed(["a photo of a cat", "two circles", "dog"])
    assert images.shape[1] == texts.shape[1]
    for rows in (images, texts):
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
        assert np.abs(rows[0] - rows[1]).max() > 0.01


@pytest.mark.slow
def test_text_embedding_does_not_depend_on_batch(bundles: dict[str, Path]) -> None:
    encoder = TextEncoder.open(bundles["clip"])
    texts = [f"a photo of a {word}" for word in ("cat", "dog", "circle", "square", "red dog")] * 8
    np.testing.assert_allclose(encoder.embed(texts)[4], encoder.embed([texts[4]])[0], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_classes_are_similarities_with_texts(bundles: dict[str, Path], tmp_path: Path, name: str) -> None:
    labels = ["cat", "red dog", "two circles"]
    assert build_classifier(bundles[name], labels, "a photo of a {}", tmp_path / "classes") <= 1e-5
    image = draw()
    found = predict(tmp_path / "classes", image)
    encoder = TextEncoder.open(bundles[name])
    texts = encoder.embed([f"a photo of a {label}" for label in labels])
    cosines = predict(bundles[name], image)["output"] @ texts.T
    expected = cosines * encoder.network["scale"] + (encoder.network["bias"] or 0)
    np.testing.assert_allclose(found["output"], expected, rtol=1e-5, atol=1e-5)
    assert found["label"][0].decode() == labels[int(expected.argmax())]
    signature = ModelBundle.open(tmp_path / "classes").signature
    assert (signature.kind, signature.labels) == ("graph", tuple(labels))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "template", "message"),
    [
        (["cat", " "], "a {}", "--labels: label 2 is empty"),
        (["cat", "dog", "cat "], "a {}", "--labels: must be different, got 'cat' twice"),
        (["cat"], "a {}", "--labels: must be 2 to 1,000 names, got 1"),
        ([f"cat {number}" for number in range(10_000)], "a {}", "--labels: must be 2 to 1,000 names, got 10,000"),
        (["cat", "dog"], "a photo", "--template: must have {} once"),
        (["cat", "dog " * LENGTH], "a {}", f"must have at most {LENGTH} tokens, this model's longest text, got 15"),
    ],
)
def test_labels_are_refused_by_name(
    bundles: dict[str, Path], tmp_path: Path, labels: list[str], template: str, message: str
) -> None:
    with pytest.raises(UserError) as refused:
        build_classifier(bundles["clip"], labels, template, tmp_path / "classes")
    assert message in str(refused.value)
    assert not (tmp_path / "classes").exists()


@pytest.mark.slow
def test_classes_need_dual_encoder(bundles: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"metadata\.kind: must be dual-encoder, got graph"):
        build_classifier(bundles["vit"], ["a", "b"], "{}", tmp_path / "classes")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "siglip2"}, "architecture must be one of .*, got 'siglip2'"),
        ({"architectures": ["CLIPForImageClassification"]}, "architectures: must be one of CLIPModel"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: not supported"),
        ({"projection_dims": 3}, "projection_dims: not known"),
        ({"text_config": {"hidden_act": "mish"}}, "text_config.hidden_act: must be one of"),
        ({"text_config": {"num_attention_heads": 7}}, "text_config.num_attention_heads: must divide hidden_size"),
        ({"vision_config": {"num_channels": 4}}, "vision_config.num_channels: must be 3"),
        (
            {"vision_config": {"image_size": 32}},
            "vision_config.image_size: must be the processor's size 24 x 24, got 32",
        ),
        ({"text_config_dict": {"hidden_size": 5}}, "text_config_dict.num_attention_heads: must divide hidden_size 5"),
    ],
)
def test_source_is_refused_before_weights_are_read(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    source = write_clip(tmp_path / "source")
    values = json.loads((source / "config.json").read_text())
    towers = {
        name: {**values[name], **changes.pop(name)} for name in ("text_config", "vision_config") if name in changes
    }
    (source / "config.json").write_text(json.dumps({**values, **changes, **towers}))
    (source / "model.safetensors").unlink()
    with pytest.raises(UserError, match=message):
        import_source(str(source), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_processor_of_another_model_is_refused(tmp_path: Path) -> None:
    source = write_clip(tmp_path / "source")
    processor = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256}}
    (source / "preprocessor_config.json").write_text(json.dumps(processor))
    with pytest.raises(UserError, match=r"vision_config\.image_size: must be the processor's size 224 x 224, got 24"):
        import_source(str(source), tmp_path / "bundle")


def test_missing_and_foreign_tensors_are_listed(tmp_path: Path) -> None:
    source = write_vit(tmp_path / "source", num_hidden_layers=3)
    with pytest.raises(UserError, match=r"vit\.encoder\.layer\.2\.layernorm_before\.weight: missing"):
        import_source(str(source), tmp_path / "bundle")


@pytest.mark.slow
def test_older_files_with_towers_twice_are_read_as_transformers_does(tmp_path: Path) -> None:
    source = write_clip(tmp_path / "source")
    values = json.loads((source / "config.json").read_text())
    towers = {f"{name}_dict": values[name] for name in ("text_config", "vision_config")}
    (source / "config.json").write_text(json.dumps({**values, **towers, "text_config": {}, "vision_config": {}}))
    assert import_source(str(source), tmp_path / "bundle") <= 1e-5


@pytest.mark.slow
def test_tower_over_the_limit_of_a_file_has_its_weights_beside(
    bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MindSpore splits the graphs of towers over 1 GiB; here of all over 1 KiB."""
    from mindspore.train import serialization

    assert serialization.TOTAL_SAVE == 1 << 20
    monkeypatch.setattr(serialization, "TOTAL_SAVE", 1)
    assert import_source(str(write_clip(tmp_path / "source")), tmp_path / "bundle") <= 1e-5
    names = ("model", "text")
    files = ModelBundle.open(tmp_path / "bundle").signature.files
    assert {f"{name}.weights_0" for name in names} < set(files)
    for name in names:
        assert int(files[f"{name}.mindir"]["size"]) < int(
            ModelBundle.open(bundles["clip"]).signature.files[f"{name}.mindir"]["size"]
        )
    np.testing.assert_array_equal(
        predict(tmp_path / "bundle", draw())["output"], predict(bundles["clip"], draw())["output"]
    )
    texts = [TextEncoder.open(path).embed(["a red dog"]) for path in (tmp_path / "bundle", bundles["clip"])]
    np.testing.assert_array_equal(*texts)
    assert build_classifier(tmp_path / "bundle", ["cat", "dog"], "a {}", tmp_path / "classes") <= 1e-5
    assert "model.weights_0" in ModelBundle.open(tmp_path / "classes").signature.files
    assert predict(tmp_path / "classes", draw())["output"].shape == (1, 2)
    with (tmp_path / "bundle/model.weights_0").open("r+b") as file:
        file.seek(200)
        file.write(b"\xff" * 8)
    with pytest.raises(CorruptBundleError, match=r"model\.weights_0: sha256 must be"):
        ModelBundle.open(tmp_path / "bundle")


def test_positions_are_kept_for_their_own_grid() -> None:
    config, *_ = parse_images(DINO, (56, 56), "config.json")
    positions = np.random.default_rng(0).normal(size=list_image_weights(config)["positions"]).astype(np.float32)
    np.testing.assert_array_equal(interpolate_positions(positions, config), positions)


def test_positions_are_interpolated_for_another_grid() -> None:
    config, *_ = parse_images(DINO, (112, 28), "config.json")
    grid = np.add.outer(np.arange(4.0), np.zeros(4)).reshape(16, 1).repeat(12, 1).astype(np.float32)
    found = interpolate_positions(np.concatenate([np.full((1, 12), -1, np.float32), grid]), config)
    assert found.shape == list_image_weights(config)["positions"] == (17, 12)
    assert found[0].tolist() == [-1] * 12
    # torch.nn.functional.interpolate(torch.arange(4.).reshape(1, 1, 4, 1), (8, 1), mode="bicubic") of torch 2.15.
    expected = [-0.105469, 0.191406, 0.667969, 1.296875, 1.703125, 2.332031, 2.808594, 3.105469]
    np.testing.assert_allclose(found[1:].reshape(8, 2, 12)[:, 0, 0], expected, atol=1e-5)
