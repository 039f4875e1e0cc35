"""A RayJob's entry point whose workers hand over the artifacts: a real object store, no shared directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kfp_mindspore.stores.artifact_store import SECRET_PREFIX, STORES_VARIABLE, Store, dump_stores
from tests.ray import loops
from tests.support.remote.object_store import BUCKET, start_object_store

pytestmark = [pytest.mark.mindspore, pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
SCRIPT = f"""
import os, shutil
from pathlib import Path
from tests.ray import loops
assert not [name for name in os.environ if name.startswith(({STORES_VARIABLE!r}, {SECRET_PREFIX!r}))]
assert Path(os.environ["KFP_MINDSPORE_DATASET_DIR"], "dataset.json").is_file()
if Path(os.environ["MARKER"]).exists() and os.environ["MS_NODE_ID"] == "0":
    # A new pod has an empty directory.
    shutil.rmtree(os.environ["KFP_MINDSPORE_OUTPUT_DIR"])
loops.train({{"callbacks": lambda: loops.kill_once(os.environ["MARKER"], 0, 15)}})
"""


def test_workers_hand_over_artifacts_and_resume_from_store(models: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with start_object_store() as store, tempfile.TemporaryDirectory(prefix="ray-") as directory:
        store.refuse_strangers()
        for file in (models / "dataset").rglob("*"):
            if file.is_file():
                store.put(f"run/dataset/{file.relative_to(models / 'dataset').as_posix()}", file.read_bytes())
        uri = f"minio://{BUCKET}/run"
        data, output = tmp_path / "inputs" / "dataset", tmp_path / "outputs" / "model"
        secrets = {"key": f"{SECRET_PREFIX}0_KEY", "secret": f"{SECRET_PREFIX}0_SECRET"}
        environment = {
            STORES_VARIABLE: dump_stores([Store(f"minio://{BUCKET}/", {"endpoint_url": store.url}, secrets)]),
            secrets["key"]: store.key,
            secrets["secret"]: store.secret,
            "KFP_MINDSPORE_DATASET_DIR": str(data),
            "KFP_MINDSPORE_OUTPUT_DIR": str(output),
            "KFP_MINDSPORE_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
            "MARKER": str(tmp_path / "killed"),
            "PYTHONPATH": str(ROOT),
            # A short path: Ray's sockets are in it.
            "RAY_TMPDIR": directory,
        }
        options = ["--download", f"{uri}/dataset", str(data), "--upload", str(output), f"{uri}/model"]
        options += ["--mkdir", f"{output}/", "--checkpoints", str(tmp_path / "checkpoints"), f"{uri}/checkpoints"]
        options += ["--keep-checkpoints", "--name=digits", "--workers=2", "--max-failures=1", "--", "train.py"]
        done = subprocess.run(
            [sys.executable, "-m", "kfp_mindspore.ray.job", *options],
            cwd=tmp_path,
            env={**{name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "killed").exists()
        checkpoint = json.loads(store.get("run/model/checkpoint/checkpoint.json"))
        assert (checkpoint["epoch"], checkpoint["training"]["workers"]) == (loops.EPOCHS, 2)
        # Also those before the failure.
        epochs = [json.loads(line)["epoch"] for line in store.get("run/model/metrics.jsonl").splitlines()]
        assert epochs == list(range(1, loops.EPOCHS + 1))
        assert any(key.endswith("checkpoint.json") for key in store.list("run/checkpoints/digits/"))
