"""Contrastive training from bundles: what is trained, what is written, and what is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kfp import dsl
from PIL import Image

from components.training.finetune_dual_encoder.component import finetune_dual_encoder
from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.mindir.graph.metadata import read_weights
from kfp_mindspore.vision.bundle import TextEncoder, build_classifier, import_source
from kfp_mindspore.vision.options import ContrastiveOptions
from kfp_mindspore.vision.training import finetune
from tests.support.language.tiny_bert import WIDTH, write_bert
from tests.support.tiny_vision import LENGTH, write_dual

pytestmark = pytest.mark.mindspore

CAPTIONS = ("a red circle", "two blue circles", "a small square", "a photo of a cat")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("training")
    for kind in ("clip", "siglip"):
        write_dual(root / f"{kind}-source", kind)
        import_source(str(root / f"{kind}-source"), root / kind)
    write_pairs(root / "pairs")
    return root


def write_pairs(folder: Path, **changes: Any) -> Path:
    """Write 32 pictures in one colour each, and metadata.jsonl; `changes` replace the last row's fields."""
    folder.mkdir()
    random, lines = np.random.default_rng(0), []
    for number in range(32):
        colour = np.zeros(3, np.uint8) + 60 * np.array([number % 4, number % 2, 3 - number % 4], np.uint8)
        pixels = np.clip(colour + random.integers(0, 30, (20, 30, 3)), 0, 255).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        (folder / f"{number}.png").write_bytes(buffer.getvalue())
        lines.append({"file_name": f"{number}.png", "text": CAPTIONS[number % 4]})
    lines[-1] |= changes
    (folder / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def list_changed(before: Path, after: Path, name: str) -> set[str]:
    old, new = read_weights(before / name), read_weights(after / name)
    assert old.keys() == new.keys()
    return {key for key in old if not np.array_equal(old[key], new[key])}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "images", "texts", "loss"),
    [("clip", "lora", "frozen", ""), ("siglip", "frozen", "lora", ""), ("clip", "all", "all", "sigmoid")],
)
def test_only_named_weights_are_trained(
    root: Path, tmp_path: Path, base: str, images: str, texts: str, loss: str
) -> None:
    options = ContrastiveOptions(
        epochs=2, batch_size=8, images=images, texts=texts, loss=loss, held_out=0.3, learning_rate=0.01
    )
    result = finetune(root / base, str(root / "pairs"), tmp_path / "tuned", options, verbose=False)
    assert result.examples + result.held_out == 32
    assert len(result.history) == 2
    for mode, name in ((images, "model.mindir"), (texts, "text.mindir")):
        changed = list_changed(root / base, tmp_path / "tuned", name)
        adapted = {f"blocks.{layer}.qkv.weight" for layer in range(2)}
        assert changed == (adapted if mode == "lora" else set()) or (mode == "all" and adapted < changed)
    old, new = (TextEncoder.open(path).network for path in (root / base, tmp_path / "tuned"))
    assert new["scale"] != old["scale"]
    assert (new["bias"] is None) == (base == "clip" and loss != "sigmoid")
    assert ModelBundle.open(tmp_path / "tuned").signature.kind == "dual-encoder"
    if loss:
        assert build_classifier(tmp_path / "tuned", CAPTIONS[:2], "{}", tmp_path / "classes") <= 1e-5


@pytest.mark.slow
def test_component_trains_new_image_tower_for_embedding_model(tmp_path: Path) -> None:
    write_bert(tmp_path / "source")
    assert run(["lm", "import", str(tmp_path / "source"), "-o", str(tmp_path / "base")]) == 0
    names = {"tuned": dsl.Model, "metrics": dsl.Metrics, "curves": dsl.HTML}
    outputs = {name: kind(uri=str(tmp_path / name), metadata={}) for name, kind in names.items()}
    found = finetune_dual_encoder.python_func(
        model=dsl.Model(uri=str(tmp_path / "base"), metadata={}),
        dataset=dsl.Dataset(uri=str(write_pairs(tmp_path / "pairs")), metadata={}),
        **outputs,
        epochs=2, batch_size=8, held_out=0.3, learning_rate=0.001, length=24,
        image_size=16, width=12, heads=2, layers=1,
    )  # fmt: skip
    assert found.examples == 22
    assert "Contrastive training" in (tmp_path / "curves").read_text()
    assert outputs["metrics"].metadata["accuracy"] == found.accuracy
    encoder = TextEncoder.open(tmp_path / "tuned")
    assert (encoder.width, encoder.max_length) == (WIDTH, 24)
    embedded = encoder.embed(CAPTIONS)
    assert embedded.shape == (4, WIDTH)
    np.testing.assert_allclose(np.linalg.norm(embedded, axis=1), 1, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"text": "red " * LENGTH},
            f"metadata.jsonl: row 32: caption: must have 1 to {LENGTH} tokens, the text length, got",
        ),
        ({"file_name": "none.png"}, "metadata.jsonl: row 32: file_name: no such file 'none.png'"),
    ],
)
def test_bad_pair_is_named_by_command(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], message: str
) -> None:
    data = write_pairs(tmp_path / "pairs", **changes)
    assert run(["vision", "finetune", str(root / "clip"), str(data), "-o", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out/model").exists()


@pytest.mark.slow
def test_bundle_without_text_configuration_is_refused(root: Path, tmp_path: Path) -> None:
    from kfp_mindspore.formats.bundle import write_bundle

    opened = ModelBundle.open(root / "clip")
    with write_bundle(tmp_path / "old") as writer:
        for file in (opened.path / name for name in opened.signature.files):
            (writer.directory / file.name).write_bytes(file.read_bytes())
        network = json.loads((opened.path / "network.json").read_text())
        del network["texts"]
        (writer.directory / "network.json").write_text(json.dumps(network))
        writer.sign(opened.signature)
    with pytest.raises(UserError, match=r"network\.json: texts: missing"):
        finetune(tmp_path / "old", str(root / "pairs"), tmp_path / "tuned")


def test_graph_bundle_is_refused(models: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"metadata\.kind: must be dual-encoder or embedding, got graph"):
        finetune(models / "raw", "drawings", tmp_path / "tuned")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 1}, "batch_size: must be .* 2, got 1"),
        ({"images": "frozen"}, "images: must be all or lora, as texts is frozen"),
        ({"patch": 7}, "image_size: must be a multiple of patch 7, got 32"),
        ({"heads": 5}, "width: must be a multiple of heads 5, got 64"),
        ({"loss": "triplet"}, "loss: must be one of"),
    ],
)
def test_wrong_option_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ContrastiveOptions(**changes)
