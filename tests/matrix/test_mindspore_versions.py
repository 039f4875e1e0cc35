"""Training, export and serving with each supported MindSpore version, and every version's bundle on every server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.formats.checkpoint import Checkpoint
from kfp_mindspore.mindir.options import TOLERANCE
from kfp_mindspore.training.history import read_history
from tests.matrix.environments import MINDSPORE_VERSIONS, install_mindspore
from tests.support.support_matrix import record

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(1200)]

COLUMNS = ("train", "resume", "export", *(f"serve {version}" for version in MINDSPORE_VERSIONS), "demo")
EPOCHS = 8
TRAINING = ("python", "-m", "kfp_mindspore.workloads.digits.train", "--epochs", str(EPOCHS))


class Results:
    """Results by MindSpore version and column of docs/support.md."""

    def __init__(self) -> None:
        self._cells: dict[str, dict[str, str]] = {}

    @contextmanager
    def measure(self, version: str, column: str) -> Iterator[None]:
        """Keep whether the block passes."""
        cells = self._cells.setdefault(version, {})
        cells[column] = "failed"
        yield
        cells[column] = "passed"

    def write(self) -> None:
        """Record each version of which every column was measured."""
        for version, cells in self._cells.items():
            if set(cells) == {*COLUMNS}:
                record("mindspore", version, {column: cells[column] for column in COLUMNS})


class Installation:
    """The commands of one MindSpore version, and what they made.

    Args:
        version: The MindSpore version.
        root: A directory for its files.
    """

    def __init__(self, version: str, root: Path) -> None:
        self.version = version
        self.root = root
        self.home = root / "home"
        self.dataset = root / "dataset"
        self.output = root / "output"

    @cached_property
    def commands(self) -> Path:
        """Directory of the environment's commands."""
        self.root.mkdir()
        return install_mindspore(self.version)

    def start(self, *words: str | Path) -> subprocess.Popen[str]:
        """Start `kfp-mindspore` in the version's environment."""
        environment = {**os.environ, "KFP_MINDSPORE_HOME": str(self.home)}
        # Without bytecode each process would compile MindSpore's 2,000 modules.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        return subprocess.Popen(
            [self.commands / "kfp-mindspore", *words],
            cwd=self.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str | Path) -> str:
        """Run a command to its end and return its output."""
        process = self.start(*words)
        output, errors = process.communicate(timeout=600)
        assert process.returncode == 0, output + errors
        return output

    def run_json(self, *words: str | Path) -> Any:
        """Run a command with --json and return its result."""
        return json.loads(self.run(*words, "--json").splitlines()[-1])

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """Metrics by epoch of a training that is not interrupted."""
        self.run("dataset", "load", "digits", self.dataset)
        self._submit("whole", self.output)
        return read_metrics(self.output)

    @cached_property
    def bundle(self) -> Path:
        """The trained network, exported."""
        assert self.metrics
        bundle = self.root / "bundle"
        words = ("--dataset", self.dataset, "--transform", "none", "--output", bundle)
        self.run("model", "export", self.output / "checkpoint", *words)
        return bundle

    def train_killed(self, output: Path) -> str:
        """Kill a training at its first checkpoint; return the log once its job has restarted and completed it."""
        assert self.metrics
        process = self.start(*self._get_submit_words("killed", output))
        deadline = time.monotonic() + 300
        while not list(output.glob("checkpoints/0*/checkpoint.json")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        supervisor = json.loads((self.home / "jobs" / "default" / "killed" / "supervisor.json").read_text())
        for worker in psutil.Process(supervisor["pid"]).children(recursive=True):
            worker.kill()
        log, errors = process.communicate(timeout=600)
        assert process.returncode == 0, log + errors
        return log + errors

    @contextmanager
    def serve(self, bundle: Path) -> Iterator[str]:
        """Serve a bundle and yield the model's URL."""
        process = self.start("serve", bundle, "--name", "digits", "--port", "0", "--grpc-port", "0", "--json")
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate()
            yield f"{json.loads(line)['url']}/v2/models/digits"
        finally:
            process.terminate()
            process.communicate(timeout=60)

    def _submit(self, name: str, output: Path) -> None:
        self.run(*self._get_submit_words(name, output))

    def _get_submit_words(self, name: str, output: Path) -> list[str | Path]:
        return [
            "job",
            "submit",
            "--name",
            name,
            "--dataset",
            self.dataset,
            "--output",
            output,
            "--wait",
            "--",
            *TRAINING,
        ]


def read_metrics(output: Path) -> list[dict[str, Any]]:
    names = ("epoch", "step", "loss", "validation")
    return [{name: record[name] for name in names} for record in read_history(output / "metrics.jsonl")]


def predict(url: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    described = [
        {"name": name, "datatype": "FP32", "shape": array.shape, "data": array.ravel().tolist()}
        for name, array in inputs.items()
    ]
    request = urllib.request.Request(
        f"{url}/infer", json.dumps({"inputs": described}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        outputs = json.load(response)["outputs"]
    return {output["name"]: np.array(output["data"]).reshape(output["shape"]) for output in outputs}


@pytest.fixture(scope="session")
def results() -> Iterator[Results]:
    """Results that are recorded at the end."""
    measured = Results()
    yield measured
    measured.write()


@pytest.fixture(scope="session")
def installations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Installation]:
    root = tmp_path_factory.mktemp("matrix")
    return {version: Installation(version, root / version) for version in MINDSPORE_VERSIONS}


@pytest.fixture(params=MINDSPORE_VERSIONS)
def installation(request: pytest.FixtureRequest, installations: dict[str, Installation]) -> Installation:
    return installations[request.param]


def test_training_reports_its_version(installation: Installation, results: Results) -> None:
    with results.measure(installation.version, "train"):
        assert f"MindSpore {installation.version})" in installation.run("--version")
        assert len(installation.metrics) == EPOCHS
        assert Checkpoint.open(installation.output / "checkpoint").mindspore_version == installation.version


def test_killed_training_continues_and_equals_whole_one(
    installation: Installation, results: Results, tmp_path: Path
) -> None:
    with results.measure(installation.version, "resume"):
        log = installation.train_killed(tmp_path / "output")
        assert re.search(r"resuming from \S+: epoch \d of", log)
        assert read_metrics(tmp_path / "output") == installation.metrics


def test_exported_bundle_is_verified(installation: Installation, results: Results) -> None:
    with results.measure(installation.version, "export"):
        assert ModelBundle.open(installation.bundle).signature.mindspore_version == installation.version
        verification = installation.run_json("model", "verify", installation.bundle, "--outputs")
        assert verification["samples"] > 0
        assert verification["max_abs_diff"] <= TOLERANCE


@pytest.mark.parametrize("exporter", MINDSPORE_VERSIONS)
def test_server_computes_what_exporter_verified(
    installation: Installation, installations: dict[str, Installation], results: Results, exporter: str
) -> None:
    with results.measure(installation.version, f"serve {exporter}"):
        bundle = ModelBundle.open(installations[exporter].bundle)
        samples = bundle.read_verified()
        with installation.serve(bundle.path) as url:
            found = predict(url, dict(samples.inputs))
        for name, expected in samples.outputs.items():
            np.testing.assert_allclose(found[name], expected, rtol=0, atol=samples.scale_tolerance(TOLERANCE))


def test_demo_succeeds(installation: Installation, results: Results) -> None:
    with results.measure(installation.version, "demo"):
        assert installation.run_json("demo", "--no-cache")["state"] == "succeeded"
