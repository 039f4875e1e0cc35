"""Vision models and image processors beside transformers on the same weights and images."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.mindir.graph.runner import GraphRunner, ModelRunner
from kfp_mindspore.transform.declaration import build_pipeline
from kfp_mindspore.vision.bundle import TextEncoder, import_model
from kfp_mindspore.vision.processor import parse_processor
from kfp_mindspore.vision.sources.keys import KEYS, TOWER_KEYS
from kfp_mindspore.vision.sources.models import read_texts
from tests.peers.test_language_models import HERE, measure_difference, run_peer

pytestmark = [pytest.mark.peers, pytest.mark.mindspore, pytest.mark.timeout(900)]

# By variant of torch_vision.MODELS: the images' height and width. DINOv2's positions are for another grid.
SIDES = {
    "clip": (30, 30), "clip-gelu": (30, 30), "siglip": (30, 30), "siglip2": (28, 28), "vit": (30, 30),
    "vit-unbiased": (30, 30), "dinov2": (37, 30), "dinov2-same": (30, 30), "dinov2-swiglu": (65, 44),
    "yolos": (65, 44), "yolos-plain": (57, 71), "yolos-two": (49, 28),
}  # fmt: skip
LENGTH, END = 13, 299
# Of published models, with other sizes.
PROCESSORS: dict[str, dict[str, Any]] = {
    "clip": {"image_processor_type": "CLIPImageProcessor"},
    "clip-odd": {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 91}, "crop_size": 75},
    "clip-padded": {
        "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 40},
        "crop_size": {"height": 61, "width": 50},
    },
    "siglip": {"image_processor_type": "SiglipImageProcessor"},
    "siglip2": {
        "image_processor_type": "SiglipImageProcessor", "resample": 2, "size": {"height": 256, "width": 256},
    },
    "vit": {"image_processor_type": "ViTImageProcessor", "size": {"height": 100, "width": 140}},
    "dinov2": {
        "image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256},
        "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225],
    },
    "unscaled": {"image_processor_type": "ViTImageProcessor", "rescale_factor": 1 / 127.5, "do_normalize": False},
}  # fmt: skip


@pytest.fixture(scope="module")
def sources(peers: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The models' directories, and transformers' outputs by variant."""
    root = tmp_path_factory.mktemp("vision")
    items = [{"directory": str(root / name), "variant": name} for name in SIDES]
    (root / "request.json").write_text(json.dumps(items))
    run_peer(peers, HERE / "torch_vision.py", "write", root / "request.json")
    requests, random = [], np.random.default_rng(0)
    for name, sides in SIDES.items():
        values = {"size": dict(zip(("height", "width"), sides, strict=True)), "do_center_crop": False}
        (root / name / "preprocessor_config.json").write_text(json.dumps(values))
        tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(END + 1)}, unk_token="w0"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.save(str(root / name / "tokenizer.json"))
        (root / name / "tokenizer_config.json").write_text(json.dumps({"pad_token": f"w{END}"}))
        np.save(root / f"{name}-images.npy", random.standard_normal((5, 3, *sides)).astype(np.float32))
        # Texts that end early, at the last place, and without an end token.
        ids = random.integers(3, END, (4, LENGTH)).astype(np.int32)
        ids[0, 5:], ids[1, 1:], ids[2, -1] = END, END, END
        np.save(root / f"{name}-ids.npy", ids)
        request = {"directory": str(root / name), "images": str(root / f"{name}-images.npy")}
        is_dual = name.startswith(("clip", "siglip"))
        request |= {"ids": str(root / f"{name}-ids.npy") if is_dual else None, "output": str(root / f"{name}.npz")}
        requests.append(request)
    (root / "request.json").write_text(json.dumps(requests))
    run_peer(peers, HERE / "torch_vision.py", "compute", root / "request.json")
    return root, {name: dict(np.load(root / f"{name}.npz")) for name in SIDES}


@pytest.mark.parametrize("name", SIDES)
def test_imported_model_gives_transformers_outputs(
    sources: tuple[Path, dict[str, Any]], tmp_path: Path, name: str
) -> None:
    (root, outputs), bundle = sources, tmp_path / "bundle"
    assert import_model(root / name, bundle) <= 1e-5
    expected = outputs[name]
    if name.startswith("yolos"):
        with GraphRunner(ModelBundle.open(bundle)) as runner:
            answers = runner.predict({
                "image": np.load(root / f"{name}-images.npy"), "extent": np.ones((5, 2), np.float32)
            })  # fmt: skip
        for what in ("logits", "boxes"):
            assert measure_difference(answers[what], expected[what]) <= 1e-5
        return
    with GraphRunner(ModelBundle.open(bundle)) as runner:
        found = runner.predict({"image": np.load(root / f"{name}-images.npy")})["output"]
    pairs = {"image": found}
    if "text" not in expected:
        assert measure_difference(found, expected["image"]) <= 1e-5
        return
    texts = TextEncoder.open(bundle).compute(np.load(root / f"{name}-ids.npy"))
    source = read_texts(root / name)
    pairs |= {"text": texts, "logits": found @ texts.T * source.scale + (source.bias or 0)}
    for what, own in pairs.items():
        assert measure_difference(own, expected[what]) <= 1e-5


def test_each_key_of_transformers_configurations_is_known(peers: Path) -> None:
    defaults = json.loads(run_peer(peers, HERE / "torch_vision.py", "defaults"))
    for kind, values in defaults.items():
        tables = [(values, KEYS[kind])]
        if kind in TOWER_KEYS:
            tables += zip((values["text_config"], values["vision_config"]), TOWER_KEYS[kind], strict=True)
        for found, table in tables:
            assert [name for name in found if name not in table and not name.startswith("_")] == []


def draw_images(directory: Path) -> list[Path]:
    random, images = np.random.default_rng(0), []
    for number, (height, width, kind) in enumerate(
        [(333, 500, "PNG"), (480, 321, "JPEG"), (224, 224, "PNG"), (57, 203, "PNG"), (1080, 1920, "JPEG")]
    ):
        coarse = Image.fromarray(random.integers(0, 256, (height // 8, width // 8, 3), np.uint8))
        images.append(directory / f"{number}.{kind.lower()}")
        coarse.resize((width, height), Image.Resampling.BICUBIC).save(images[-1], kind)
    return images


@pytest.mark.parametrize("shorter", [48, 64])
def test_detections_equal_transformers(sources: tuple[Path, Any], peers: Path, tmp_path: Path, shorter: int) -> None:
    directory = shutil.copytree(sources[0] / "yolos", tmp_path / "yolos")
    values = {"image_processor_type": "YolosImageProcessor", "size": {"shortest_edge": shorter, "longest_edge": 96}}
    (directory / "preprocessor_config.json").write_text(json.dumps(values))
    images = draw_images(tmp_path)
    item = {"directory": str(directory), "images": list(map(str, images)), "output": str(tmp_path / "boxes.npz")}
    (tmp_path / "request.json").write_text(json.dumps([{**item, "threshold": 0.35}]))
    run_peer(peers, HERE / "torch_vision.py", "detect", tmp_path / "request.json")
    expected = dict(np.load(tmp_path / "boxes.npz"))
    import_model(directory, tmp_path / "bundle")
    files = np.array([file.read_bytes() for file in images], object)
    with ModelRunner(tmp_path / "bundle") as runner:
        assert runner.transform is not None
        pixels = runner.transform.run_preprocess({"image": files})["image"]
        runner.transform = runner.transform.adapt({"threshold": 0.35})
        found = runner.predict({"image": files})
    most = 1.01 if expected["pillow"] == PIL.__version__ else 2.01
    assert sum(found["count"]) > 3
    for number, count in enumerate(found["count"]):
        assert np.abs(pixels[number] - expected[f"pixels.{number}"]).max() <= most / 255 / 0.224
        labels = [b"LABEL_%d" % label for label in expected[f"labels.{number}"]]
        assert found["labels"][number, :count].tolist() == labels
        tolerance = 1e-5 if expected["pillow"] == PIL.__version__ else 0.02
        assert np.abs(found["scores"][number, :count] - expected[f"scores.{number}"]).max(initial=0) <= tolerance
        boxes = expected[f"boxes.{number}"]
        largest = np.abs(boxes).max(initial=1)
        assert np.abs(found["boxes"][number, :count] - boxes).max(initial=0) <= tolerance * largest


def test_pixels_equal_transformers_processors(peers: Path, tmp_path: Path) -> None:
    images, items = draw_images(tmp_path), []
    for name, values in PROCESSORS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "preprocessor_config.json").write_text(json.dumps(values))
        output = str(tmp_path / f"{name}.npz")
        items.append({"directory": str(tmp_path / name), "images": list(map(str, images)), "output": output})
    (tmp_path / "request.json").write_text(json.dumps(items))
    run_peer(peers, HERE / "torch_vision.py", "pixels", tmp_path / "request.json")
    for name, values in PROCESSORS.items():
        steps, _ = parse_processor(values, "CLIP", name)
        pipeline = build_pipeline({"pre": steps})
        expected = np.load(tmp_path / f"{name}.npz")
        for number, file in enumerate(images):
            found = pipeline.preprocess({"image": np.array([file.read_bytes(), b""], object)[:1]})["image"][0]
            # In the processor's units, where a level is 1 / 255 over the least deviation.
            level = 1 / 127.5 if name == "unscaled" else 1 / 255 / min(values.get("image_std", [0.27]))
            assert found.shape == expected[str(number)].shape
            # Pillow 13 rounds otherwise than 12 where the aspect ratio changes.
            most = 1.01 if expected["pillow"] == PIL.__version__ else 2.01
            assert np.abs(found - expected[str(number)]).max() <= most * level
