"""Texts and images in one space, served by the OpenAI protocol; bad images are refused by their field."""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import jsonschema
import numpy as np
import pytest
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub
from PIL import Image

from kfp_mindspore.cli.main import run
from kfp_mindspore.inference.smoke import run_smoke_test
from kfp_mindspore.mindir.graph.runner import ModelRunner
from kfp_mindspore.transform.base import fill_objects
from kfp_mindspore.vision.bundle import TextEncoder
from mindsporeserver.language.errors import LanguageError
from mindsporeserver.language.fields.images import parse_parts
from tests.support.serving.model_servers import ModelServer
from tests.support.tiny_vision import LENGTH, SPACE, write_clip

GREEN = (10, 200, 30)


def encode(image: Any, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def draw(height: int = 30, width: int = 40, seed: int = 0) -> Any:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def to_url(content: bytes, declared: str = "image/png") -> str:
    return f"data:{declared};base64,{base64.b64encode(content).decode()}"


def to_part(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def to_messages(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def make_bomb() -> bytes:
    """Return a PNG of 20,000 x 20,000 pixels in some kilobytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(bytes(2501) * 200)
    header = struct.pack(">IIBBBBB", 20_000, 20_000, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


URL = "messages[0].content[0].image_url.url"
PNG = encode(draw())
REFUSED: dict[str, tuple[Any, str, str]] = {
    "no list": ("a cat", "messages", "must be a list of 1 to 32 messages"),
    "no message": ([], "messages", "must be a list of 1 to 32 messages"),
    "other role": ([{"role": "system", "content": "a cat"}], "messages[0].role", "must be user"),
    "no content": ([{"role": "user"}], "messages[0].content", "must be a list of 1 to 32 parts"),
    "other part": (to_messages({"type": "video_url"}), "messages[0].content[0].type", "must be text or image_url"),
    "many": (to_messages(*[to_part(to_url(PNG))] * 20) * 2, "messages", "must have at most 32 parts in all, got 40"),
    "address": (to_messages(to_part("https://example.com/cat.png")), URL, "this server fetches no images"),
    "file": (to_messages(to_part("file:///etc/passwd")), URL, "must be a data URL"),
    "no text": (to_messages(to_part(None)), URL, "must be a data URL, got"),
    "no base64": (to_messages(to_part("data:image/png;base64,§§")), URL, "must be base64 after the comma"),
    "other type": (
        to_messages(to_part(to_url(encode(draw(), "GIF"), "image/gif"))), URL,
        "type: must be image/png or image/jpeg, got 'image/gif'",
    ),
    "wrong type": (
        to_messages(to_part(to_url(encode(draw(), "JPEG")))), URL, "must be the declared image/png, is image/jpeg",
    ),
    "unknown bytes": (to_messages(to_part(to_url(b"cat"))), URL, "must be the declared image/png, is another format"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_bad_messages_are_refused_by_field(name: str) -> None:
    messages, param, text = REFUSED[name]
    with pytest.raises(LanguageError) as refused:
        parse_parts(messages)
    assert (refused.value.param, refused.value.message.startswith(param), text in refused.value.message) == (
        param, True, True,
    )  # fmt: skip


def test_parts_keep_their_order_and_fields() -> None:
    messages = [{"role": "user", "content": "a cat"}, *to_messages(to_part(to_url(PNG)), {"type": "text", "text": "x"})]
    messages += to_messages({"type": "image_url", "image_url": to_url(encode(draw(), "JPEG"), "image/jpg")})
    parts = parse_parts(messages)
    assert [(part.param, part.text, bool(part.image)) for part in parts] == [
        ("messages[0].content", "a cat", False),
        ("messages[1].content[0].image_url.url", "", True),
        ("messages[1].content[1]", "x", False),
        ("messages[2].content[0].image_url", "", True),
    ]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dual")
    source = write_clip(directory / "source")
    assert run(["vision", "import", str(source), "-o", str(directory / "bundle")]) == 0
    return directory / "bundle"


@pytest.fixture(scope="module")
def words(bundle: Path) -> Path:
    """A classifier of three labels."""
    words = bundle.with_name("words")
    assert run(["vision", "classes", str(bundle), "--labels", "cat, dog,two circles", "-o", str(words)]) == 0
    return words


@pytest.fixture(scope="module")
def server(bundle: Path, words: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    models = {"clip": bundle, "words": words}
    with ModelServer(tmp_path_factory.mktemp("served"), models, "--enable_docs_url=true") as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def url(server: ModelServer) -> str:
    return f"http://127.0.0.1:{server.port}"


def compute(bundle: Path, *images: bytes) -> Any:
    with ModelRunner(bundle) as runner:
        return runner.predict({"image": fill_objects(list(images))})


def infer(server: ModelServer, name: str, *images: bytes) -> Any:
    """Return a model's response by gRPC."""
    contents = pb.InferTensorContents(bytes_contents=list(images))
    tensor = pb.ModelInferRequest.InferInputTensor(
        name="image", datatype="BYTES", shape=[len(images)], contents=contents
    )
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = GRPCInferenceServiceStub(channel)
        return stub.ModelInfer(pb.ModelInferRequest(model_name=name, inputs=[tensor]), timeout=60)


def post(url: str, **fields: Any) -> Any:
    return httpx.post(f"{url}/openai/v1/embeddings", json={"model": "clip", **fields}, timeout=60)


def embed(url: str, *parts: Any) -> Any:
    response = post(url, messages=to_messages(*parts))
    assert response.status_code == 200, response.text
    return np.array([item["embedding"] for item in response.json()["data"]])


def prepare_rotated() -> tuple[bytes, bytes]:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encode(draw(), exif=exif), encode(draw().transpose(Image.Transpose.ROTATE_270))


def prepare_cmyk() -> tuple[bytes, bytes]:
    content = encode(draw().convert("CMYK"), "JPEG")
    return content, encode(Image.open(io.BytesIO(content)).convert("RGB"))


def prepare_animated() -> tuple[bytes, bytes]:
    return encode(draw(), save_all=True, append_images=[draw(seed=1)]), PNG


def prepare_one_pixel() -> tuple[bytes, bytes]:
    return encode(Image.new("RGB", (1, 1), GREEN)), encode(Image.new("RGB", (24, 24), GREEN))


def prepare_transparent() -> tuple[bytes, bytes]:
    image = draw().convert("RGBA")
    image.putalpha(40)
    return encode(image), PNG


@pytest.mark.mindspore
@pytest.mark.slow
class TestServed:
    def test_texts_and_images_are_in_one_space(self, url: str, bundle: Path) -> None:
        texts = ["a photo of a cat", "two circles"]
        parts = [{"type": "text", "text": texts[0]}, to_part(to_url(PNG)), {"type": "text", "text": texts[1]}]
        found = embed(url, *parts)
        assert found.shape == (3, SPACE)
        np.testing.assert_allclose(found[[0, 2]], TextEncoder.open(bundle).embed(texts), atol=1e-6)
        with ModelRunner(bundle) as runner:
            (expected,) = runner.predict({"image": fill_objects([PNG])})["output"]
        np.testing.assert_allclose(found[1], expected, atol=1e-6)

    def test_base64_equals_float(self, url: str) -> None:
        messages = to_messages(to_part(to_url(PNG)))
        floats = post(url, messages=messages).json()
        encoded = post(url, messages=messages, encoding_format="base64", dimensions=SPACE).json()
        values = np.frombuffer(base64.b64decode(encoded["data"][0]["embedding"]), "<f4")
        np.testing.assert_allclose(values, floats["data"][0]["embedding"], rtol=1e-6)
        assert floats["usage"] == {"prompt_tokens": 0, "total_tokens": 0}

    def test_texts_are_taken_as_input_too(self, url: str, bundle: Path) -> None:
        response = post(url, input=["a cat", "a dog"]).json()
        expected = TextEncoder.open(bundle).embed(["a cat", "a dog"])
        np.testing.assert_allclose([item["embedding"] for item in response["data"]], expected, atol=1e-6)
        assert response["usage"]["prompt_tokens"] == 8

    def test_smoke_test_compares_verified_texts(self, url: str, bundle: Path) -> None:
        assert run_smoke_test(url, "clip", bundle).samples == 2

    def test_classes_by_words_are_served_as_any_classifier(self, url: str, bundle: Path, words: Path) -> None:
        assert run_smoke_test(url, "words", words).samples == 32
        body = {"instances": [to_url(PNG)]}
        (answer,) = httpx.post(f"{url}/v1/models/words:predict", json=body, timeout=60).json()["predictions"]
        texts = embed(
            url, *({"type": "text", "text": f"a photo of a {name}"} for name in ("cat", "dog", "two circles"))
        )
        expected = embed(url, to_part(to_url(PNG))) @ texts.T * np.exp(2.5)
        np.testing.assert_allclose(answer["output"], expected[0], atol=1e-5)
        assert answer["label"] == ("cat", "dog", "two circles")[int(expected.argmax())]

    def test_classes_by_words_answer_by_grpc(self, server: ModelServer, words: Path) -> None:
        expected = compute(words, PNG, encode(draw(seed=3)))
        found = {output.name: output.contents for output in infer(server, "words", PNG, encode(draw(seed=3))).outputs}
        np.testing.assert_allclose(found["output"].fp32_contents, expected["output"].ravel(), atol=1e-5)
        assert list(found["label"].bytes_contents) == expected["label"].tolist()

    def test_images_are_embedded_by_each_protocol(self, server: ModelServer, url: str, bundle: Path) -> None:
        # More than a batch of the graph.
        images = [encode(draw(seed=seed)) for seed in range(34)]
        expected = compute(bundle, *images)["output"]
        (output,) = infer(server, "clip", *images).outputs
        assert (output.name, list(output.shape)) == ("output", [34, SPACE])
        np.testing.assert_allclose(output.contents.fp32_contents, expected.ravel(), atol=1e-6)
        body = {"instances": [to_url(image) for image in images[:3]]}
        found = httpx.post(f"{url}/v1/models/clip:predict", json=body, timeout=60).json()["predictions"]
        np.testing.assert_allclose(found, expected[:3], atol=1e-6)
        tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [to_url(PNG)]}
        (answer,) = httpx.post(f"{url}/v2/models/clip/infer", json={"inputs": [tensor]}, timeout=60).json()["outputs"]
        np.testing.assert_allclose(answer["data"], expected[0], atol=1e-6)
        assert httpx.get(f"{url}/v2/models/clip").json()["outputs"] == [
            {"name": "output", "datatype": "FP32", "shape": [-1, SPACE]}
        ]

    def test_refused_image_is_named_by_each_protocol(self, server: ModelServer, url: str) -> None:
        body = {"instances": [to_url(PNG), to_url(PNG[:40])]}
        response = httpx.post(f"{url}/v1/models/clip:predict", json=body, timeout=60)
        assert response.status_code == 400
        assert "image of row 1: must be a whole PNG or JPEG file" in response.json()["error"]
        with pytest.raises(grpc.RpcError, match="must be a whole PNG or JPEG file"):
            infer(server, "clip", b"no picture")

    def test_document_has_messages_and_tensors(self, url: str) -> None:
        document = httpx.get(f"{url}/openapi.json").json()
        content = document["paths"]["/openai/v1/embeddings"]["post"]["requestBody"]["content"]["application/json"]
        request = {"model": "clip", "messages": to_messages({"type": "text", "text": "a cat"}, to_part(to_url(PNG)))}
        for example in (content["example"], request):
            jsonschema.validate(example, content["schema"])
            response = httpx.post(f"{url}/openai/v1/embeddings", json=example, timeout=60)
            assert response.status_code == 200, response.text
        remote = to_messages(to_part("https://example.com/cat.png"))
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**request, "messages": remote}, content["schema"])
        content = document["paths"]["/v2/models/clip/infer"]["post"]["requestBody"]["content"]["application/json"]
        assert httpx.post(f"{url}/v2/models/clip/infer", json=content["example"], timeout=60).status_code == 200

    def test_command_predicts_images(self, bundle: Path, tmp_path: Path, capsys: Any) -> None:
        (tmp_path / "rows.json").write_text(json.dumps([to_url(PNG), to_url(encode(draw(seed=3)))]))
        assert run(["model", "predict", str(bundle), str(tmp_path / "rows.json"), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["outputs"]["output"]
        np.testing.assert_allclose(found, compute(bundle, PNG, encode(draw(seed=3)))["output"], atol=1e-6)

    @pytest.mark.parametrize(
        "prepare", [prepare_rotated, prepare_cmyk, prepare_animated, prepare_one_pixel, prepare_transparent]
    )
    def test_unusual_image_is_embedded_as_plain_one(self, url: str, prepare: Any) -> None:
        content, plain = prepare()
        declared = "image/jpeg" if content.startswith(b"\xff\xd8") else "image/png"
        found = embed(url, to_part(to_url(content, declared)), to_part(to_url(plain)))
        np.testing.assert_allclose(found[0], found[1], atol=1e-5)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (encode(Image.fromarray(np.zeros((9, 9), np.uint16))), "must have 8 bits a channel, its mode is I;16"),
            (PNG[: len(PNG) // 2], "must be a whole PNG or JPEG file"),
            (PNG[:8], "must be a whole PNG or JPEG file"),
            (encode(Image.new("1", (60_000, 1))), "is too narrow"),
            (encode(Image.new("1", (20_000, 2000))), "must have at most 33554432 pixels, has 20000 x 2000"),
            (make_bomb(), "must have at most 33554432 pixels"),
        ],
        ids=["16-bit", "truncated", "header", "narrow", "large", "bomb"],
    )
    def test_bad_image_is_named_among_others(self, url: str, content: bytes, message: str) -> None:
        response = post(url, messages=to_messages(to_part(to_url(PNG)), to_part(to_url(content))))
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "messages[0].content[1].image_url.url")
        assert message in error["message"]

    @pytest.mark.parametrize(
        ("fields", "param", "message"),
        [
            (
                {"messages": to_messages({"type": "text", "text": "cat " * 50})},
                "messages[0].content[0]",
                f"{LENGTH} tokens",
            ),
            ({"messages": to_messages({"type": "text", "text": " "})}, "messages[0].content[0]", "must not be empty"),
            ({"messages": to_messages({"type": "text", "text": "a"}), "input": "a"}, "input", "not be given with"),
            ({"messages": to_messages(to_part(to_url(PNG))), "dimensions": 3}, "dimensions", f"must be {SPACE}"),
            ({"input": "cat " * 50}, "input", f"{LENGTH} tokens"),
        ],
    )
    def test_bad_text_is_named(self, url: str, fields: dict[str, Any], param: str, message: str) -> None:
        response = post(url, **fields)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, param)
        assert message in error["message"]
