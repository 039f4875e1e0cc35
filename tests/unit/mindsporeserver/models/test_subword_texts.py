"""Subwords of texts: training, export, evaluation and a real server give the same ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.data import load_dataset, read_samples
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.inference import run_smoke_test
from kfp_mindspore.inference.predict import predict
from kfp_mindspore.mindir import ModelRunner
from kfp_mindspore.transform import Tokenize, build_pipeline
from tests.support.serving.model_servers import ModelServer

pytestmark = [pytest.mark.mindspore, pytest.mark.slow]

LENGTH = 16
TEXTS = [f"The naïve café №{index} isn't bad, {'größer' if index % 2 else 'smaller'} 🙂" for index in range(60)]
UNSEEN = [
    "",
    " ",
    "👩‍👩‍👧 🏳️‍🌈",
    "雨が降る",
    "cafe\u0301 CAFÉ café",
    "\u0000\ufffd\ud7ff",
    "x" * 3000,
    "isn't\r\n\tBAD!!",
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("tokenizers")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[3] / "support" / "models"))
        import mindspore
        import small_networks

        from kfp_mindspore.formats.checkpoint import NetworkSpec, write_checkpoint
        from kfp_mindspore.mindir import export_mindir

        root = tmp_path_factory.mktemp("subwords")
        (root / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
        dataset = load_dataset(
            str(root / "texts.jsonl"),
            root / "data",
            inputs={"text": "text"},
            preprocessing=[Tokenize(LENGTH, "subwords", lowercase=True, max_values=400, column="text")],
        )
        spec = NetworkSpec("small_networks:Echo")
        with write_checkpoint(
            root / "checkpoint", epoch=1, step=1, seed=1, network=spec, preprocessing=dataset.preprocessing
        ) as directory:
            mindspore.save_checkpoint(small_networks.Echo(), str(directory / "network.ckpt"))
        export_mindir(root / "checkpoint", root / "model", dataset_dir=dataset.path)
        yield root


def test_server_gives_ids_of_training(root: Path, start_server: Callable[..., Any]) -> None:
    samples = read_samples(root / "data", "train")
    training = samples.inputs["text"]
    pipeline = build_pipeline(ModelBundle.open(root / "model").read_preprocessing())
    texts = [*(text.decode() for text in samples.raw["text"]), *UNSEEN]
    encoded = np.array([text.encode() for text in texts], object)
    (expected,) = pipeline.preprocess({"text": encoded}).values()
    np.testing.assert_array_equal(expected[: len(training)], training)
    with ModelRunner(root / "model") as runner:
        (exported,) = runner.predict({"text": encoded}).values()
    np.testing.assert_array_equal(exported, expected)

    server = start_server(root / "model", "texts")
    server.wait("/v2/health/ready")
    status, found, _ = server.request("/v1/models/texts:predict", {"instances": [{"text": text} for text in texts]})
    assert status == 200, found
    assert found["predictions"] == expected.tolist()
    body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}]}
    status, found, _ = server.request("/v2/models/texts/infer", body)
    assert status == 200, found
    assert found["outputs"][0]["data"] == expected.ravel().tolist()
    url = f"http://127.0.0.1:{server.port}"
    for index, text in enumerate(UNSEEN, len(training)):
        (alone,) = predict(url, "texts", [{"text": text}]).values()
        np.testing.assert_array_equal(alone[0], expected[index])
    assert run_smoke_test(url, "texts", root / "model", samples=12).max_abs_diff == 0


def test_server_without_library_names_extra(root: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizers.py").write_text("raise ImportError('not installed')\n")
    server = ModelServer(tmp_path, {"texts": root / "model"}, environment={"PYTHONPATH": str(tmp_path)})
    try:
        assert server.process.wait(120) == 2
        log = server.read_log()
    finally:
        server.process.kill()
    assert "tokenizers is not installed" in log
    assert "kfp-mindspore[tokenizers]" in log
    assert "Traceback" not in log
