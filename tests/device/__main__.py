"""Checks MindSpore on this machine's device, the most valuable first, and writes a report as JSON.

Skipped with a reason where MindSpore can use neither a GPU nor an NPU. Each stage is the commands that users run, with
$KFP_MINDSPORE_DEVICE; the stages that compute alone are in stages.py. `--device CPU` rehearses everything but figures.

Example:
    python -m tests.device --report device.json
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from kfp_mindspore import files
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.mindir.devices import inspect_device
from kfp_mindspore.mindir.options import DEVICE_TOLERANCES
from kfp_mindspore.training.history import read_history
from tests.support.ports import reserve_port

TOLERANCE = DEVICE_TOLERANCES["float32"]
CLIENTS, REQUESTS = 32, 1000
EPOCHS = {"digits": 8, "vit": 3}
DATASETS = {"digits": "digits", "vit": "shapes"}


@dataclass
class Place:
    """Where and on what the stages run.

    Args:
        device: GPU, Ascend or CPU.
        root: A scratch directory.
        deadline: `time.monotonic()` after which nothing is started.
    """

    device: str
    root: Path
    deadline: float

    @property
    def left(self) -> float:
        """Seconds left, at least one."""
        return max(1.0, self.deadline - time.monotonic())

    def run(self, *words: str, device: str = "", **variables: str) -> str:
        """Run `python -m …` on a device and return its output; raise RuntimeError with the last lines of a failure."""
        environment = {**os.environ, **variables, "KFP_MINDSPORE_DEVICE": device or self.device}
        done = subprocess.run(
            [sys.executable, "-m", *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=self.left,
            check=False,
        )
        if done.returncode:
            raise RuntimeError("\n".join(done.stdout.splitlines()[-8:]))
        return done.stdout

    def train(self, workload: str, output: str, device: str = "") -> tuple[dict[str, Any], str]:
        """Train a workload and return the last epoch's record and the output."""
        text = self.run(*self.build_training(workload), device=device, **self.list_variables(workload, output))
        return read_history(self.root / output / "metrics.jsonl")[-1], text

    def build_training(self, workload: str) -> list[str]:
        return [f"kfp_mindspore.workloads.{workload}.train", "--epochs", str(EPOCHS[workload])]

    def list_variables(self, workload: str, output: str) -> dict[str, str]:
        names = {"DATASET": f"data-{workload}", "OUTPUT": output, "CHECKPOINT": f"{output}/checkpoints"}
        return {f"KFP_MINDSPORE_{name}_DIR": str(self.root / path) for name, path in names.items()}


def check_kernels(place: Place) -> dict[str, Any]:
    """Matmul and convolution against NumPy."""
    return read_result(place.run("tests.device.stages", "kernels"))


def check_training(place: Place) -> dict[str, Any]:
    """LeNet and ViT by `fit` as on the CPU; a killed run is resumed."""
    found: dict[str, Any] = {}
    for workload, dataset in DATASETS.items():
        place.run("kfp_mindspore.cli.main", "dataset", "load", dataset, str(place.root / f"data-{workload}"))
        record, text = place.train(workload, workload)
        expected, _ = place.train(workload, f"{workload}-cpu", device="CPU")
        assert f"training on {place.device}" in text, text
        found[workload] = {
            "samples_per_second": record["samples_per_second"],
            "loss": [record["loss"], expected["loss"]],
            "accuracy": [record["validation"]["accuracy"], expected["validation"]["accuracy"]],
        }
        assert abs(record["loss"] - expected["loss"]) < 0.15 * expected["loss"], found[workload]
    lenet = found["digits"]["accuracy"]
    assert lenet[0] > lenet[1] - 0.03, lenet
    found["resumed"] = _resume(place, lenet[0])
    return found


def _resume(place: Place, accuracy: float) -> dict[str, Any]:
    history = place.root / "resumed" / "metrics.jsonl"
    environment = {**os.environ, **place.list_variables("digits", "resumed"), "KFP_MINDSPORE_DEVICE": place.device}
    with (place.root / "killed.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *place.build_training("digits")], env=environment, stdout=log, stderr=log
        )
        try:
            while len(read_history(history)) < 2 and process.poll() is None and place.left > 1:
                time.sleep(0.01)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    killed = len(read_history(history))
    assert 2 <= killed < EPOCHS["digits"], killed
    record, text = place.train("digits", "resumed")
    assert "resuming from" in text, text
    assert abs(record["validation"]["accuracy"] - accuracy) < 0.03, (record, accuracy)
    return {"killed_after_epochs": killed, "accuracy": record["validation"]["accuracy"]}


def check_export(place: Place) -> dict[str, Any]:
    """Export on the device; the bundle computes the same on both."""
    bundle = str(place.root / "bundle")
    exported = ["model", "export", str(place.root / "digits" / "checkpoint"), "-o", bundle]
    words = [*exported, "--dataset", str(place.root / "data-digits"), "--device", place.device]
    place.run("kfp_mindspore.cli.main", *words)
    found = {"exported": ModelBundle.open(bundle).signature.verified["max_abs_diff"]}
    for device in dict.fromkeys((place.device, "CPU")):
        verify = ["model", "verify", bundle, "--outputs", "--json", "--device", device]
        found[device] = read_result(place.run("kfp_mindspore.cli.main", *verify, device=device))["max_abs_diff"]
    return found


def check_serving(place: Place) -> dict[str, Any]:
    """Serve under 32 clients with equal answers, and without growing over 1,000 requests."""
    verified = ModelBundle.open(place.root / "bundle").read_verified()
    inputs, outputs = next(iter((verified.raw or verified.inputs).values())), next(iter(verified.outputs.values()))
    with _serve(place) as (url, process):

        def predict(index: int) -> float:
            rows = inputs[index % len(inputs)][None]
            (answer,) = _post(f"{url}/v1/models/digits:predict", {"instances": rows.tolist()})["predictions"]
            scores = np.asarray(answer["output"] if isinstance(answer, dict) else answer)
            return float(np.abs(scores - outputs[index % len(outputs)]).max())

        predict(0)
        with ThreadPoolExecutor(CLIENTS) as clients:
            begun = time.perf_counter()
            worst = max(clients.map(predict, range(10 * CLIENTS)))
            seconds = time.perf_counter() - begun
            before = process.memory_info().rss, read_device_memory()
            worst = max(worst, *clients.map(predict, range(REQUESTS)))
        after = process.memory_info().rss, read_device_memory()
    assert worst <= TOLERANCE * max(1.0, float(np.abs(outputs).max())), worst
    assert after[0] - before[0] < 64 << 20, (before, after)
    assert after[1] - before[1] < 64, (before, after)
    return {
        "largest_difference": worst,
        "requests_per_second": round(10 * CLIENTS / seconds, 1),
        "memory_growth": {"host_bytes": after[0] - before[0], "device_mib": after[1] - before[1]},
    }


@contextmanager
def _serve(place: Place) -> Iterator[tuple[str, psutil.Process]]:
    port = reserve_port()
    flags = ["--model_name=digits", f"--model_dir={place.root / 'bundle'}", f"--http_port={port}"]
    with (place.root / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mindsporeserver", *flags, "--enable_grpc=false", f"--device={place.device}"],
            stdout=log,
            stderr=log,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            if process.poll() is not None or place.left <= 1:
                raise RuntimeError((place.root / "server.log").read_text()[-2000:])
            try:
                urllib.request.urlopen(f"{url}/v2/health/ready", timeout=10).close()
                break
            except OSError:
                time.sleep(0.1)
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
            assert f'mindsporeserver_device_info{{device="{place.device}"}} 1.0' in response.read().decode()
        yield url, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(60)


def _post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def check_speed(place: Place) -> dict[str, Any]:
    """`fit`, a served graph and a network's step beside plain MindSpore, and PyTorch where it is installed."""
    words = ["speed", str(place.root / "bundle"), str(place.root / "data-vit")]
    return read_result(place.run("tests.device.stages", *words))


STAGES: dict[str, Callable[[Place], dict[str, Any]]] = {
    "kernels": check_kernels,
    "training": check_training,
    "export": check_export,
    "serving": check_serving,
    "speed": check_speed,
}


def read_result(output: str) -> dict[str, Any]:
    """Return the JSON object on the last line of an output."""
    result: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return result


def read_device_memory() -> int:
    """Return the used memory of all NVIDIA devices in MiB; 0 without nvidia-smi."""
    try:
        words = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return sum(map(int, subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()))
    except (OSError, ValueError, subprocess.CalledProcessError):
        return 0


def choose_device(given: str) -> tuple[str, str]:
    """Return the device to check, empty for none, and why not the others."""
    if given == "CPU":
        return given, ""
    states = [inspect_device(name) for name in ([given] if given else ["Ascend", "GPU"])]
    usable = next((state.device for state in states if state.count), "")
    return usable, "" if usable else "; ".join(f"{state.device}: {state.reason}" for state in states)


def run_stages(place: Place) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run each stage and yield its name and result: its findings, or why it failed or was skipped."""
    for name, check in STAGES.items():
        begun = time.monotonic()
        if begun >= place.deadline:
            yield name, {"skipped": "no time is left"}
            continue
        try:
            found = check(place)
        except (RuntimeError, AssertionError, OSError, subprocess.TimeoutExpired) as error:
            found = {"failed": f"{type(error).__name__}: {error}"[-2000:]}
        yield name, {**found, "seconds": round(time.monotonic() - begun, 1)}


def main() -> int:
    """Check the device; exit with 1 if a stage has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.device", description=__doc__)
    parser.add_argument("--device", choices=("CPU", "GPU", "Ascend"), default="")
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--report", type=Path, default=Path("build/device.json"))
    options = parser.parse_args()
    device, reason = choose_device(options.device)
    options.report.parent.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"device": device, "date": time.strftime("%Y-%m-%d"), "stages": {}}
    if not device:
        report["skipped"] = reason
        print(f"skipped: MindSpore can use no GPU and no NPU here: {reason}", file=sys.stderr)
    else:
        with tempfile.TemporaryDirectory(prefix="kfp-mindspore-device-") as scratch:
            for name, found in run_stages(Place(device, Path(scratch), time.monotonic() + options.seconds)):
                report["stages"][name] = found
                # A run that is cut keeps what it found.
                files.write_text(options.report, json.dumps(report))
                print(f"{name}: {json.dumps(found)}", file=sys.stderr, flush=True)
    files.write_text(options.report, json.dumps(report))
    print(json.dumps(report))
    return int(any("failed" in found for found in report["stages"].values()))


if __name__ == "__main__":
    sys.exit(main())
