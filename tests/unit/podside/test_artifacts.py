"""The entrypoint of pods as real processes against moto: each stage, and what is lost when it is killed there."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kfp_mindspore.formats.checkpoint import DESCRIPTION, Checkpoint, name_checkpoint
from kfp_mindspore.podside.artifacts import PERMANENT_EXIT_CODE, RETRYABLE_EXIT_CODE
from kfp_mindspore.stores.artifact_store import STORES_VARIABLE, ArtifactStore, Store, dump_stores
from tests.support.remote.object_store import (
    ACCESS_KEY,
    BUCKET,
    SECRET_KEY,
    GatedProxy,
    ObjectStore,
    s3_options,
    start_object_store,
)

SCRIPT = Path(__file__).parents[2] / "support" / "training" / "checkpoint_script.py"
# An s3fs that cannot be imported.
BROKEN = Path(__file__).parents[2] / "support" / "remote" / "without_s3fs"
ROOT = f"s3://{BUCKET}/run/train"
SECONDS = 300.0


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with start_object_store() as store:
        yield store


@pytest.fixture
def store(server: ObjectStore) -> ObjectStore:
    for key in server.list():
        server.client.delete_object(Bucket=BUCKET, Key=key)
    server.put("data/dataset.json", "{}")
    server.put("data/parts/train.npz", os.urandom(100_000))
    server.put("data-other/x", "not below data/")
    return server


@pytest.fixture
def proxy(store: ObjectStore) -> Iterator[GatedProxy]:
    with GatedProxy(store) as proxy:
        yield proxy


class Pod:
    """One pod of a job: an empty directory and the entrypoint in a process group of its own."""

    def __init__(
        self, directory: Path, url: str, epochs: int = 3, env: Mapping[str, str] | None = None, **options: str
    ):
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.fifo = directory / "fifo"
        os.mkfifo(self.fifo)
        self.checkpoints, self.output = directory / "checkpoints", directory / "output"
        secrets = {"key": "KFP_MINDSPORE_STORE_0_KEY", "secret": "KFP_MINDSPORE_STORE_0_SECRET"}
        environment = {
            **os.environ,
            STORES_VARIABLE: dump_stores([Store("s3://", s3_options(url), secrets)]),
            "KFP_MINDSPORE_STORE_0_KEY": ACCESS_KEY,
            "KFP_MINDSPORE_STORE_0_SECRET": SECRET_KEY,
            "KFP_MINDSPORE_DATASET_DIR": str(directory / "dataset"),
            "KFP_MINDSPORE_CHECKPOINT_DIR": str(self.checkpoints),
            "KFP_MINDSPORE_OUTPUT_DIR": str(self.output),
            **(env or {}),
        }
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "kfp_mindspore.podside.artifacts"),
                *("--download", options.get("dataset", f"s3://{BUCKET}/data")),
                options.get("shared", str(directory / "dataset")),
                *(("--shared",) if "shared" in options else ()),
                *("--upload", f"{self.output}/", f"{ROOT}/model"),
                *("--mkdir", str(self.output)),
                *("--checkpoints", str(self.checkpoints), f"{ROOT}/checkpoints"),
                *("--sync-seconds", "0.2", "--"),
                *(options["command"].split() if "command" in options else ()),
                *(() if "command" in options else (sys.executable, str(SCRIPT), str(epochs), str(self.fifo))),
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self.log: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)

    def wait_line(self, text: str) -> str:
        """Return the next line of the log with a text."""
        while True:
            line = self.lines.get(timeout=SECONDS)
            self.log.append(line)
            if text in line:
                return line

    def command(self, line: str = "go") -> None:
        """Send a line to the training."""
        with self.fifo.open("w") as file:
            file.write(line + "\n")

    def wait(self) -> int:
        """Return the exit code."""
        code = self.process.wait(SECONDS)
        while not self.lines.empty():
            self.log.append(self.lines.get())
        return code

    def kill(self) -> None:
        """Kill all processes, as the end of a container does."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(SECONDS)


@pytest.fixture
def pods(proxy: GatedProxy, tmp_path: Path) -> Iterator[list[Pod]]:
    started: list[Pod] = []
    yield started
    for pod in started:
        if pod.process.poll() is None:
            pod.kill()


def start(pods: list[Pod], proxy: GatedProxy, tmp_path: Path, **options: object) -> Pod:
    pods.append(Pod(tmp_path / f"pod-{len(pods)}", proxy.url, **options))  # type: ignore[arg-type]
    return pods[-1]


def train(pod: Pod, *epochs: int) -> None:
    """Run epochs; the script opens the FIFO once, so that all lines are one write."""
    with pod.fifo.open("w") as file:
        for epoch in epochs:
            file.write("go\n")
            file.flush()
            pod.wait_line(f"epoch {epoch}")


def list_remote(store: ObjectStore) -> dict[str, list[str]]:
    """Return the names of the objects of each checkpoint."""
    found: dict[str, list[str]] = {}
    for key in store.list("run/train/checkpoints/"):
        folder, _, name = key.removeprefix("run/train/checkpoints/").partition("/")
        found.setdefault(folder, []).append(name)
    return found


def download_checkpoints(store: ObjectStore, directory: Path) -> list[int]:
    """Return the epochs of the described checkpoints in the store; each must be intact."""
    client = ArtifactStore([Store("s3://", {**s3_options(store.url), "key": ACCESS_KEY, "secret": SECRET_KEY})], {})
    epochs = []
    for name, files in list_remote(store).items():
        if DESCRIPTION in files:
            client.download(f"{ROOT}/checkpoints/{name}", directory / name)
            epochs.append(Checkpoint.open(directory / name).epoch)
    return sorted(epochs)


def test_finished_command_leaves_output_and_no_checkpoints(
    store: ObjectStore, proxy: GatedProxy, pods: list[Pod], tmp_path: Path
) -> None:
    store.put("run/train/model/stale.txt", "of an earlier attempt")
    pod = start(pods, proxy, tmp_path)
    assert pod.wait_line("started") == "started: epoch 0, data ['dataset.json', 'parts'], secrets []\n"
    train(pod, 1, 2, 3)
    assert pod.wait() == 0, pod.log
    assert store.list("run/") == [
        "run/train/model/checkpoint/checkpoint.json",
        "run/train/model/checkpoint/network.ckpt",
        "run/train/model/checkpoint/optimizer.ckpt",
        "run/train/model/metrics.jsonl",
    ]
    assert [json.loads(line)["epoch"] for line in store.get("run/train/model/metrics.jsonl").splitlines()] == [1, 2, 3]


def test_kill_while_training_loses_epoch_without_checkpoint_only(
    store: ObjectStore, proxy: GatedProxy, pods: list[Pod], tmp_path: Path
) -> None:
    pod = start(pods, proxy, tmp_path, epochs=5)
    held = proxy.close_gate(rf"PUT /{BUCKET}/run/train/checkpoints/00003-30/optimizer.ckpt")
    train(pod, 1, 2, 3)
    held.wait()
    pod.kill()
    # The third checkpoint is in the store in part, and its description is not.
    assert download_checkpoints(store, tmp_path)[-1] == 2
    assert DESCRIPTION not in list_remote(store)["00003-30"]
    # Of the last pass, which reads the metrics before it lists the checkpoints; each checkpoint has its own history.
    assert len(store.get("run/train/model/metrics.jsonl").splitlines()) in (1, 2, 3)
    held.open.set()

    again = start(pods, proxy, tmp_path, epochs=5)
    assert "epoch 2," in again.wait_line("started")
    assert not (again.checkpoints / "00003-30").exists()
    train(again, 3, 4, 5)
    assert again.wait() == 0, again.log
    assert Checkpoint.open(again.output / "checkpoint").epoch == 5
    assert not list_remote(store)


def test_kill_while_downloading_leaves_nothing_behind(
    store: ObjectStore, proxy: GatedProxy, pods: list[Pod], tmp_path: Path
) -> None:
    before = store.list()
    held = proxy.close_gate(rf"GET /{BUCKET}/data/parts/train.npz")
    pod = start(pods, proxy, tmp_path)
    held.wait()
    pod.kill()
    assert store.list() == before
    assert not (pod.directory / "dataset").exists()


def test_sigterm_while_downloading_ends_pod_at_once(
    store: ObjectStore, proxy: GatedProxy, pods: list[Pod], tmp_path: Path
) -> None:
    held = proxy.close_gate(rf"GET /{BUCKET}/data/parts/train.npz")
    pod = start(pods, proxy, tmp_path)
    held.wait()
    pod.process.terminate()
    assert pod.wait() == 143
    assert not (pod.directory / "dataset").exists()


def test_kill_while_uploading_output_resumes_from_last_epoch(
    store: ObjectStore, proxy: GatedProxy, pods: list[Pod], tmp_path: Path
) -> None:
    pod = start(pods, proxy, tmp_path)
    held = proxy.close_gate(rf"PUT /{BUCKET}/run/train/model/checkpoint/optimizer.ckpt")
    train(pod, 1, 2, 3)
    held.wait()
    pod.kill()
    held.open.set()
    again = start(pods, proxy, tmp_path)
    assert "epoch 3," in again.wait_line("started")
    train(again)
    assert again.wait() == 0, again.log
    assert "run/train/model/checkpoint/checkpoint.json" in store.list()


def test_sigterm_saves_checkpoint_and_keeps_exit_code(
    store: ObjectStore, proxy: GatedProxy, pods: list[Pod], tmp_path: Path
) -> None:
    pod = start(pods, proxy, tmp_path)
    with pod.fifo.open("w") as file:
        file.write("go\n")
        file.flush()
        pod.wait_line("epoch 1")
        pod.process.terminate()
        assert pod.wait() == 143, pod.log
    assert DESCRIPTION in list_remote(store)["00001-15"]
    assert "epoch 1," in start(pods, proxy, tmp_path).wait_line("started")


@pytest.mark.parametrize("code", [1, 137, 0])
def test_exit_code_of_command_is_kept(
    code: int, store: ObjectStore, proxy: GatedProxy, pods: list[Pod], tmp_path: Path
) -> None:
    pod = start(pods, proxy, tmp_path)
    pod.wait_line("started")
    pod.command(f"exit {code}")
    assert pod.wait() == code


def test_signal_that_ends_command_becomes_exit_code(
    store: ObjectStore, proxy: GatedProxy, pods: list[Pod], tmp_path: Path
) -> None:
    command = f"{sys.executable} -c __import__('os').kill(__import__('os').getpid(),9)"
    assert start(pods, proxy, tmp_path, command=command).wait() == 137
    assert start(pods, proxy, tmp_path, command="no-such-command").wait() == 127


@pytest.mark.parametrize(
    "env",
    [
        {"MS_ROLE": "MS_WORKER", "MS_NODE_ID": "1"},
        {"MS_ROLE": "MS_SCHED"},
        {"MS_ROLE": "MS_PSERVER", "MS_NODE_ID": "0"},
    ],
    ids=["worker 1", "scheduler", "parameter server"],
)
def test_other_replicas_upload_nothing(
    env: dict[str, str], store: ObjectStore, proxy: GatedProxy, pods: list[Pod], tmp_path: Path
) -> None:
    pod = start(pods, proxy, tmp_path, env=env)
    train(pod, 1, 2, 3)
    assert pod.wait() == 0, pod.log
    assert store.list("run/") == []
    assert not [line for line in proxy.requests if not line.startswith(("GET", "HEAD"))]


def test_checkpoints_of_writer_are_pruned_in_store(
    store: ObjectStore, proxy: GatedProxy, pods: list[Pod], tmp_path: Path
) -> None:
    pod = start(pods, proxy, tmp_path, epochs=5)
    with pod.fifo.open("w") as file:
        for epoch in (1, 2, 3, 4):
            file.write("go\n")
            file.flush()
            pod.wait_line(f"epoch {epoch}")
        file.write("exit 1\n")
        file.flush()
        assert pod.wait() == 1
    assert sorted(list_remote(store)) == [name_checkpoint(3, 30), name_checkpoint(4, 40)]
    # The newer checkpoint is committed before the older one is deleted.
    commits = [line for line in proxy.requests if re.match(rf"(PUT|DELETE) \S+{DESCRIPTION}", line)]
    deleted = next((i for i, line in enumerate(commits) if line.startswith("DELETE")), len(commits))
    assert sum(line.startswith("PUT") for line in commits[:deleted]) >= 2


def test_store_that_fails_during_training_is_retried(
    store: ObjectStore, proxy: GatedProxy, pods: list[Pod], tmp_path: Path
) -> None:
    pod = start(pods, proxy, tmp_path)
    pod.wait_line("started")
    proxy.refused = re.compile("PUT")
    with pod.fifo.open("w") as file:
        file.write("go\n")
        file.flush()
        pod.wait_line("Warning: s3://")
        proxy.refused = None
        file.write("go\ngo\n")
    assert pod.wait() == 0, pod.log
    assert "run/train/model/checkpoint/checkpoint.json" in store.list()


def test_final_upload_is_retried(store: ObjectStore, proxy: GatedProxy, pods: list[Pod], tmp_path: Path) -> None:
    pod = start(pods, proxy, tmp_path, epochs=1)
    pod.wait_line("started")
    proxy.refused = re.compile("PUT")
    pod.command()
    pod.wait_line("next attempt in 1 s")
    proxy.refused = None
    assert pod.wait() == 0, pod.log
    assert "run/train/model/checkpoint/checkpoint.json" in store.list()


def test_worker_0_downloads_for_all_to_shared_volume(
    store: ObjectStore, proxy: GatedProxy, pods: list[Pod], tmp_path: Path
) -> None:
    shared = tmp_path / "volume" / "dataset"
    options = {"command": "ls " + str(shared), "shared": str(shared)}
    second = start(pods, proxy, tmp_path, env={"MS_ROLE": "MS_WORKER", "MS_NODE_ID": "1"}, **options)
    held = proxy.close_gate(rf"GET /{BUCKET}/data/parts/train.npz")
    first = start(pods, proxy, tmp_path, env={"MS_ROLE": "MS_WORKER", "MS_NODE_ID": "0"}, **options)
    held.wait()
    assert second.process.poll() is None
    held.open.set()
    assert (first.wait(), second.wait()) == (0, 0), (first.log, second.log)
    assert "parts\n" in second.log
    gets = [line for line in proxy.requests if line.startswith(f"GET /{BUCKET}/data/")]
    assert len(gets) == 2


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"dataset": f"s3://{BUCKET}/absent"}, PERMANENT_EXIT_CODE, "absent cannot be read: no such object"),
        ({"dataset": "s3://absent/data"}, PERMANENT_EXIT_CODE, "bucket does not exist"),
        (
            {"dataset": "oci://registry/model"},
            PERMANENT_EXIT_CODE,
            "expected a URI with one of s3, minio, gs, http, https",
        ),
        ({"env": {"KFP_MINDSPORE_STORE_0_KEY": ""}}, PERMANENT_EXIT_CODE, "KFP_MINDSPORE_STORE_0_KEY is not set"),
        ({"url": "http://127.0.0.1:9"}, RETRYABLE_EXIT_CODE, "Could not connect"),
        (
            {"env": {"PYTHONPATH": str(BROKEN)}},
            PERMANENT_EXIT_CODE,
            r"the image of the job needs kfp-mindspore\[artifacts",
        ),
    ],
    ids=["no object", "no bucket", "scheme", "secret", "unreachable", "no s3fs"],
)
def test_failed_download_is_one_sentence(
    change: dict[str, object], code: int, message: str, store: ObjectStore, pods: list[Pod], tmp_path: Path
) -> None:
    pods.append(Pod(tmp_path / "pod", str(change.pop("url", store.url)), **change))  # type: ignore[arg-type]
    pods[0].wait_line("Error: ")
    assert pods[0].wait() == code
    assert len(pods[0].log) == 1
    assert re.search(message, pods[0].log[0])


def test_entrypoint_imports_neither_kfp_nor_numpy() -> None:
    code = (
        "import sys, kfp_mindspore.podside.artifacts; "
        "print([name for name in ('kfp', 'mindspore', 'numpy', 'aiohttp', 'fsspec') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
