"""Detectors: import, bundle, answers of server and command line, refused sources. tests/peers compares boxes."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub
from PIL import Image

from kfp_mindspore.cli.main import run
from kfp_mindspore.data import load_dataset
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.inference import run_smoke_test
from kfp_mindspore.mindir.graph.runner import ModelRunner
from kfp_mindspore.mindir.parameters.files import read_parameters
from kfp_mindspore.mindir.verify import verify_bundle
from kfp_mindspore.transform.base import fill_objects
from kfp_mindspore.vision.bundle import import_source
from kfp_mindspore.vision.detections import draw_detections, list_detections
from kfp_mindspore.vision.processor import parse_detector_processor
from tests.support.box_folders import write_coco
from tests.support.mindspore_processes import MindSporeProcesses
from tests.support.serving.model_servers import ModelServer
from tests.support.tiny_vision import QUERIES, write_yolos

pytestmark = pytest.mark.mindspore

YOLOS = {"image_processor_type": "YolosImageProcessor"}


def draw(height: int, width: int) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


PICTURES = [draw(40, 60), draw(90, 50), draw(33, 33)]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("detector")
    write_yolos(root / "source")
    assert import_source(str(root / "source"), root / "bundle") <= 1e-5
    return root / "bundle"


def predict(bundle: Path, threshold: float) -> Any:
    with ModelRunner(bundle) as runner:
        runner.adapt({"threshold": threshold})
        return runner.predict({"image": fill_objects(PICTURES)})


@pytest.mark.slow
def test_bundle_is_verified_graph_for_any_batch(bundle: Path) -> None:
    assert verify_bundle(bundle, outputs=True).samples == 32
    signature = ModelBundle.open(bundle).signature
    assert (signature.kind, signature.task, signature.labels) == ("detector", "none", ("cat", "dog", "owl"))
    assert [spec.shape for spec in signature.inputs] == [(-1, 3, 64, 64), (-1, 2)]
    assert [spec.shape for spec in signature.outputs] == [(-1, QUERIES, 4), (-1, QUERIES, 4)]
    found = predict(bundle, 0)
    assert found["count"].tolist() == [QUERIES] * 3
    # A picture's boxes are those that it has alone.
    with ModelRunner(bundle) as runner:
        runner.adapt({"threshold": 0})
        alone = runner.predict({"image": fill_objects(PICTURES[1:2])})
    np.testing.assert_allclose(found["boxes"][1:2], alone["boxes"], rtol=1e-4)


@pytest.mark.slow
def test_server_answers_by_each_protocol(bundle: Path, tmp_path: Path) -> None:
    scores = predict(bundle, 0)["scores"]
    threshold = float(np.sort(scores.ravel())[-4:-2].mean())
    expected = predict(bundle, threshold)
    assert sum(expected["count"]) == 3
    texts = [base64.b64encode(picture).decode() for picture in PICTURES]
    instances = [{"b64": text} for text in texts]
    tensor = {"name": "image", "shape": [3], "datatype": "BYTES", "data": texts}
    with ModelServer(tmp_path, {"detector": bundle}) as server:
        server.wait_ready()
        smoke = run_smoke_test(f"http://127.0.0.1:{server.port}", "detector", bundle)
        assert smoke.samples == 32
        body = {"instances": instances, "parameters": {"threshold": threshold}}
        rows = server.post("/v1/models/detector:predict", body)[1]["predictions"]
        body = {"inputs": [tensor], "parameters": {"threshold": threshold}}
        outputs = server.post("/v2/models/detector/infer", body)[1]["outputs"]
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            request = pb.ModelInferRequest(model_name="detector")
            request.inputs.add(name="image", shape=[3], datatype="BYTES").contents.bytes_contents.extend(PICTURES)
            request.parameters["threshold"].string_param = str(threshold)
            answer = GRPCInferenceServiceStub(channel).ModelInfer(request)
            request.parameters["threshold"].string_param = "2"
            with pytest.raises(grpc.RpcError) as refused:
                GRPCInferenceServiceStub(channel).ModelInfer(request)
        assert refused.value.details() == "parameters.threshold: must be a number from 0 to 1, got '2'"
        truncated = [{"b64": base64.b64encode(PICTURES[0][:-30]).decode()}]
        for path, refusal, message in (
            ("v2/models/detector/infer", {"inputs": [tensor], "parameters": {"threshold": -1}}, "1, got -1"),
            ("v1/models/detector:predict", {"instances": instances, "parameters": 3}, "parameters: must be an object"),
            ("v1/models/detector:predict", {"instances": truncated}, "image: must be a whole PNG or JPEG file"),
        ):
            status, error, _ = server.post(f"/{path}", refusal)
            assert status == 400
            assert message in error["error"]
    assert [row["count"] for row in rows] == expected["count"].tolist()
    np.testing.assert_allclose([row["boxes"] for row in rows], expected["boxes"], rtol=1e-4, atol=1e-3)
    assert [row["labels"] for row in rows] == [[label.decode() for label in row] for row in expected["labels"]]
    for output, name in zip(outputs, ("count", "labels", "scores", "boxes"), strict=True):
        assert (output["name"], output["shape"]) == (name, list(expected[name].shape))
    np.testing.assert_allclose(outputs[3]["data"], expected["boxes"].ravel(), rtol=1e-4, atol=1e-3)
    assert list(answer.outputs[0].contents.int64_contents) == expected["count"].tolist()


@pytest.mark.slow
def test_command_prints_boxes_and_draws_picture(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("street.png").write_bytes(PICTURES[0])
    command = ["model", "predict", str(bundle), "street.png", "--threshold", "0"]
    for _ in range(2):
        # The second one replaces the first one's picture.
        assert run([*command, "-o", "boxes.png"]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[0])
    expected = list_detections(predict(bundle, 0))[0]
    assert [found["label"] for found in line["detections"]] == [found["label"] for found in expected]
    drawn = Image.open("boxes.png")
    assert drawn.size == (60, 40)
    assert np.asarray(drawn).tolist() != np.asarray(Image.open("street.png")).tolist()
    for words, message in (
        (["-o", "boxes.csv"], "boxes.csv: must end in .png"),
        (["-o", "street.png"], "street.png: "),
        (["--threshold", "1.5"], "1.5 is not in the range 0<=x<=1"),
    ):
        assert run([*command[:4], *words]) == 2
        assert message in capsys.readouterr().err
    Path("rows.json").write_text("[]")
    assert run(["model", "predict", str(bundle), "rows.json", "-o", "boxes.png"]) == 2
    assert "-o: boxes are drawn into a PNG or JPEG image, FILE is rows.json" in capsys.readouterr().err
    assert Path("street.png").read_bytes() == PICTURES[0]


def test_boxes_are_drawn_where_they_are_shown() -> None:
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    Image.new("CMYK", (60, 20)).save(buffer, "JPEG", exif=exif)
    found = {"label": "cat", "score": 0.5, "box": [2.0, 30.0, 15.0, 50.0]}
    image = Image.open(io.BytesIO(draw_detections(buffer.getvalue(), [found])))
    assert image.size == (20, 60)
    assert image.getpixel((15, 45)) == (0xE6, 0x9F, 0)
    assert image.getpixel((17, 45)) != (0xE6, 0x9F, 0)


@pytest.mark.parametrize(
    ("values", "canvas"),
    [
        ({}, (1328, 1328)),
        ({"size": 512, "max_size": 864, "feature_extractor_type": "YolosFeatureExtractor"}, (864, 864)),
        ({"size": {"max_height": 512, "max_width": 864}}, (512, 864)),
        ({"size": {"height": 40, "width": 50}, "resample": 3, "do_normalize": False}, (40, 50)),
        ({"pad_size": {"height": 1400, "width": 1328}, "format": "coco_detection"}, (1400, 1328)),
    ],
)
def test_processor_has_canvas_for_each_picture(values: dict[str, Any], canvas: tuple[int, int]) -> None:
    assert parse_detector_processor({**YOLOS, **values}, "preprocessor_config.json")[1] == canvas


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"image_processor_type": "DetrImageProcessor"}, "image_processor_type: must be one of YolosImageProcessor"),
        ({"image_processor_type": "ViTImageProcessor"}, "image_processor_type: must be one of YolosImageProcessor"),
        ({"do_pad": False}, "do_pad: must be true: images have one size"),
        ({"do_center_crop": True}, "do_center_crop: this processor does not crop"),
        ({"size": {"shortest_edge": 800}}, "size: must have shortest_edge and longest_edge"),
        ({"size": {"shortest_edge": 9, "longest_edge": 9}}, "longest_edge must be at least 16"),
        ({"pad_size": {"height": 800, "width": 1333}}, "pad_size: must be height and width of the largest image"),
        ({"padding": "same"}, "padding: not known"),
    ],
)
def test_processor_is_refused_by_key(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_detector_processor({**YOLOS, **values}, "preprocessor_config.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_size": 24}, "image_size: must be a list of height and width, got 24"),
        ({"image_size": [24, 44]}, "image_size: must be multiples of patch_size 8 with mid positions, got 24 x 44"),
        ({"patch_size": 99}, "patch_size: must be at most 24"),
        ({"num_detection_tokens": 0}, "num_detection_tokens: must be"),
        ({"architectures": ["YolosModel"]}, "architectures: must be one of YolosForObjectDetection"),
        ({"use_mask": True}, "use_mask: not known"),
        ({"id2label": {"0": "cat", "2": "dog"}}, "id2label: must have"),
    ],
)
def test_detector_is_refused_before_weights_are_read(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    source = write_yolos(tmp_path / "source", **changes)
    (source / "model.safetensors").unlink()
    with pytest.raises(UserError, match=message):
        import_source(str(source), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    source = write_yolos(tmp_path / "source", num_detection_tokens=7)
    with pytest.raises(UserError, match=r"detection_tokens: shape must be \(7, 16\), got \(6, 16\)"):
        import_source(str(source), tmp_path / "bundle")


@pytest.mark.slow
def test_training_starts_from_imported_detector(
    bundle: Path, mindspore_processes: MindSporeProcesses, tmp_path: Path
) -> None:
    """Other classes and another size: blocks are the detector's, its positions are resized."""
    pictures = {name: ((40, 20), [(0, 0, 0, 10, 10), (1, 20, 5, 40, 20)]) for name in "abcdefghijkl"}
    given = write_coco(tmp_path / "given", pictures)
    for file in (given / "annotations").iterdir():
        content = json.loads(file.read_text())
        file.write_text(json.dumps({**content, "categories": content["categories"][:2]}))
    load_dataset(str(given), tmp_path / "dataset", image_size=(16, 48))
    module, frozen = "kfp_mindspore.workloads.detection.train", ("blocks.*", "positions", "mid_positions", "boxes.*")
    words = [
        "-m",
        module,
        "--epochs=1",
        "--batch-size=4",
        f"--initial={bundle}",
        *(f"--freeze={pattern}" for pattern in frozen),
    ]
    names = {"KFP_MINDSPORE_DATASET_DIR": "dataset", "KFP_MINDSPORE_OUTPUT_DIR": "model"}
    environment = {name: str(tmp_path / place) for name, place in names.items()}
    code, output = mindspore_processes.start(words, tmp_path / "work", environment=environment).finish(500)
    assert code == 0, output[-4000:]
    assert "starting from" in output
    first, trained = (read_parameters(path) for path in (bundle, tmp_path / "model" / "checkpoint"))
    for name in ("blocks.0.qkv.weight", "blocks.1.feed.down.bias", "boxes.0.weight"):
        np.testing.assert_allclose(trained[name].asnumpy(), first[name].asnumpy(), atol=1e-6)
    assert trained["classes.4.bias"].shape == (2 + 1,)
    positions, source = (found["positions"].asnumpy() for found in (trained, first))
    assert (len(source), len(positions)) == (1 + 8 * 8 + QUERIES, 1 + 2 * 6 + QUERIES)
    np.testing.assert_allclose(positions[[0, *range(-QUERIES, 0)]], source[[0, *range(-QUERIES, 0)]], atol=1e-6)
