"""The whole way with real bundles and the real server."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.data import read_samples
from kfp_mindspore.errors import ProcessFailedError, UserError
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.inference import InferenceClient, LocalServingBackend, Service, run_smoke_test
from kfp_mindspore.inference.rest import request_json
from kfp_mindspore.inference.service import ServiceStatus

# Slow as a module: its tests share one server.
pytestmark = [pytest.mark.mindspore, pytest.mark.slow]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceClient]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("KFP_MINDSPORE_LEASE", raising=False)
        new = InferenceClient(LocalServingBackend(tmp_path_factory.mktemp("home")))
        yield new
        for status in new.list():
            new.delete(status.name)


@pytest.fixture(scope="module")
def status(client: InferenceClient, models: Path, tmp_path_factory: pytest.TempPathFactory) -> ServiceStatus:
    bundle = tmp_path_factory.mktemp("served") / "digits"
    shutil.copytree(models / "free", bundle)
    return client.deploy(Service("digits", bundle))


def test_deploy_and_smoke_test(client: InferenceClient, status: ServiceStatus, models: Path) -> None:
    assert status.ready
    report = run_smoke_test(status.url, "digits", models / "free", samples=40)
    assert report.samples == 40
    assert report.max_abs_diff <= 1e-5
    assert report.prediction == report.label
    metadata = request_json("GET", f"{status.url}/v2/models/digits")
    assert metadata["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
    log = "\n".join(client.logs("digits"))
    assert "model digits version 1: ready in" in log
    assert "/ready" not in log


def test_predictions_are_arrays_of_any_length(client: InferenceClient, status: ServiceStatus, models: Path) -> None:
    test = read_samples(models / "dataset", "test")
    features, labels = test.inputs["image"], test.target
    scores = client.predict("digits", features.astype("float64"))["output"]
    assert scores.dtype == "float32"
    assert (scores.argmax(axis=1) == labels).mean() > 0.9
    verified = ModelBundle.open(models / "free").read_verified()
    np.testing.assert_allclose(scores[: len(verified)], verified.outputs["output"], atol=1e-5)
    named = client.predict("digits", {"image": features[:1]}, url=f"{status.url}/")
    np.testing.assert_allclose(named["output"], scores[:1], atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"picture": np.zeros((1, 1, 8, 8))}, "model digits has image, got picture"),
        (np.zeros((1, 1, 8, 8), complex), "image: must be float32, got complex128"),
        ({"image": [[1.0], [1.0, 2.0]]}, "image: rows must have the same shape"),
        (np.zeros((0, 1, 8, 8)), "same number of samples, at least 1, got \\[0\\]"),
    ],
)
def test_samples_that_cannot_be_sent_are_refused(
    client: InferenceClient, status: ServiceStatus, inputs: Any, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        client.predict("digits", inputs)


@pytest.mark.parametrize("timeout", [0, True, "1"])
def test_timeout_must_be_number_of_seconds(client: InferenceClient, status: ServiceStatus, timeout: Any) -> None:
    with pytest.raises(UserError, match="timeout: must be a number of seconds above 0, got"):
        client.predict("digits", np.zeros((1, 1, 8, 8)), timeout=timeout)


def test_another_model_fails_smoke_test(status: ServiceStatus, models: Path) -> None:
    with pytest.raises(ProcessFailedError, match=r"smoke test of digits by v1: .*answered 400"):
        run_smoke_test(status.url, "digits", models / "pair", samples=6)


def test_new_version_with_several_inputs(client: InferenceClient, status: ServiceStatus, models: Path) -> None:
    new = client.deploy(Service("digits", models / "pair"))
    assert (new.version, new.ready) == (status.version + 1, True)
    assert run_smoke_test(new.url, "digits", models / "pair", samples=6).max_abs_diff <= 1e-5
    verified = ModelBundle.open(models / "pair").read_verified()
    for name, outputs in client.predict("digits", verified.inputs).items():
        np.testing.assert_allclose(outputs, verified.outputs[name], atol=1e-5)
    with pytest.raises(UserError, match="needs arrays by name: values, index"):
        client.predict("digits", np.zeros((1, 3)))


def test_killed_restarted_and_stopped(
    client: InferenceClient, status: ServiceStatus, models: Path, eventually: Callable[..., Any]
) -> None:
    before = client.get("digits")
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)
    eventually(lambda: client.get("digits").restarts == 1)
    after = client.wait_ready("digits")
    assert after.pid != before.pid
    assert after.url == before.url
    assert run_smoke_test(after.url, "digits", after.model, samples=6).max_abs_diff <= 1e-5
    stopped = client.stop("digits")
    assert (stopped.state, stopped.pid) == ("Stopped", None)
