"""The lifecycle's stages as a plain script: no KFP, no MSJob, no supervisor.

`python plain_lifecycle.py STAGE DIRECTORY` runs one stage in this process, `all` every stage; the server is a process
of its own either way.
"""

from __future__ import annotations

import os
import runpy
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

# First, as in the steps of a run: it fixes the order of imports.
import kfp_mindspore  # noqa: F401

MODEL_NAME = "digits"


def load(directory: Path) -> None:
    """Write the dataset directory."""
    from kfp_mindspore.data import load_dataset

    load_dataset("digits", directory / "dataset", seed=42)


def train(directory: Path) -> None:
    """Run the pipeline's training script."""
    os.environ["KFP_MINDSPORE_DATASET_DIR"] = str(directory / "dataset")
    os.environ["KFP_MINDSPORE_CHECKPOINT_DIR"] = str(directory / "checkpoints")
    os.environ["KFP_MINDSPORE_OUTPUT_DIR"] = str(directory / "output")
    sys.argv = ["train"]
    runpy.run_module("kfp_mindspore.workloads.digits.train", run_name="__main__")


def export(directory: Path) -> None:
    """Write the verified bundle."""
    from kfp_mindspore.mindir import export_mindir

    export_mindir(directory / "output" / "checkpoint", directory / "model", dataset_dir=directory / "dataset")


def export_graph(directory: Path) -> None:
    """Write the bundle without preprocessing, for servers that run the graph alone."""
    from kfp_mindspore.mindir import export_mindir

    checkpoint, dataset = directory / "output" / "checkpoint", directory / "dataset"
    export_mindir(checkpoint, directory / "graph", dataset_dir=dataset, transform="none")


def evaluate(directory: Path) -> None:
    """Evaluate the bundle on the test split; exit below the gate."""
    from kfp_mindspore.mindir import evaluate_bundle

    accuracy = evaluate_bundle(directory / "model", directory / "dataset").value
    if accuracy < 0.95:
        raise SystemExit(f"accuracy {accuracy:.3f} is below 0.950")


def serve(directory: Path) -> None:
    """Start the server, wait until it is ready, smoke-test and terminate it."""
    from kfp_mindspore.inference import run_smoke_test

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "mindsporeserver",
            f"--model_name={MODEL_NAME}",
            f"--model_dir={directory / 'model'}",
            f"--http_port={port}",
            "--grpc_port=0",
            "--enable_grpc=false",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(f"{url}/v2/models/{MODEL_NAME}/ready", timeout=5) as response:
                    if response.status == 200:
                        break
            except (urllib.error.URLError, OSError):
                pass
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not become ready (exit code {server.poll()})")
            time.sleep(0.05)
        run_smoke_test(url, MODEL_NAME, directory / "model")
    finally:
        server.terminate()
        server.wait()


STAGES = {
    "load": load,
    "train": train,
    "export": export,
    "export-graph": export_graph,
    "evaluate": evaluate,
    "serve": serve,
}


def main() -> None:
    """Run the stages."""
    stage, directory = sys.argv[1], Path(sys.argv[2])
    for name in STAGES if stage == "all" else [stage]:
        STAGES[name](directory)


if __name__ == "__main__":
    main()
