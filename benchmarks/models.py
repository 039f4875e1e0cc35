"""The models that are served in benchmarks/serving.py, made once and kept.

`python models.py NAME DIRECTORY` writes the bundle `DIRECTORY`: `lenet`, trained on digits by the lifecycle's own
training script, or `resnet18` for 3×32×32 images, whose weights are random: what it answers means nothing, what it
costs is what a trained one costs.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from kfp_mindspore.formats.bundle import ModelBundle

MODELS = ("lenet", "resnet18")
LIFECYCLE = "kfp_mindspore.pipelines.digits_lifecycle"
SEED = 42
CLASSES = 10
SAMPLES = 64


def make_model(name: str, cache: Path) -> ModelBundle:
    """Return a model's bundle, made now unless it was made by the same source before.

    Args:
        name: One of MODELS.
        cache: Where bundles are kept.

    Raises:
        RuntimeError: It could not be made; the message ends with what the process said.
    """
    import kfp_mindspore.pipelines.digits_lifecycle as lifecycle

    sources = [Path(__file__), *sorted(Path(lifecycle.__path__[0]).glob("*.py"))]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    path = cache / f"{name}-{digest}"
    if not path.is_dir():
        done = subprocess.run(
            [sys.executable, __file__, name, str(path)],
            env={**os.environ, "GLOG_v": "4"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"the model {name} could not be made:\n{(done.stdout + done.stderr)[-2000:]}")
    return ModelBundle.open(path)


def write_lenet(path: Path) -> None:
    """Load digits, train and export, each by the SDK."""
    import runpy

    from kfp_mindspore.formats.dataset import load_dataset
    from kfp_mindspore.mindir import export_mindir

    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        load_dataset("digits", root / "dataset", seed=SEED)
        os.environ["KFP_MINDSPORE_DATASET_DIR"] = str(root / "dataset")
        os.environ["KFP_MINDSPORE_CHECKPOINT_DIR"] = str(root / "checkpoints")
        os.environ["KFP_MINDSPORE_OUTPUT_DIR"] = str(root / "output")
        sys.argv = ["train", "--seed", str(SEED)]
        runpy.run_module(f"{LIFECYCLE}.train", run_name="__main__")
        export_mindir(root / "output" / "checkpoint", path, dataset_dir=root / "dataset", sample_count=SAMPLES)


def write_resnet18(path: Path) -> None:
    """Export the network with random weights."""
    import mindspore
    import numpy as np
    from peers.serving.resnet import ResNet18

    from kfp_mindspore.formats.checkpoint import NetworkSpec, write_checkpoint
    from kfp_mindspore.mindir import export_mindir

    mindspore.set_seed(SEED)
    network = ResNet18(CLASSES)
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = Path(scratch) / "checkpoint"
        with write_checkpoint(checkpoint, epoch=0, step=0, seed=SEED, network=NetworkSpec("")) as directory:
            mindspore.save_checkpoint(network, str(directory / "network.ckpt"))
        # Pixels of 8 bits, as images have them.
        pixels = np.random.default_rng(SEED).integers(0, 256, (SAMPLES, 3, 32, 32))
        export_mindir(checkpoint, path, samples=(pixels / 256).astype(np.float32), network=network)


if __name__ == "__main__":
    {"lenet": write_lenet, "resnet18": write_resnet18}[sys.argv[1]](Path(sys.argv[2]))
