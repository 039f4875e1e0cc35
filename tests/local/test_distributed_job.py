"""MindSpore in the processes of a job."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.ports import reserve_port

ALLREDUCE = """
import os
import mindspore as ms
from mindspore import nn, ops
from mindspore.communication import get_group_size, get_rank, init

ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
init()


class Sum(nn.Cell):
    def __init__(self):
        super().__init__()
        self.reduce = ops.AllReduce()

    def construct(self, x):
        return self.reduce(x)


total = Sum()(ms.Tensor([get_rank() + 1.0], ms.float32)).asnumpy()
line = f"rank {get_rank()} of {get_group_size()} node {os.environ['MS_NODE_ID']} sum {float(total[0])}\\n"
os.write(1, line.encode())  # at once: mpirun joins what the ranks write
"""
# MindSpore 2.9 sometimes ends a worker so after its script has finished.
CRASH_AT_EXIT = 128 + signal.SIGSEGV


@pytest.mark.mindspore
def test_two_workers_allreduce(local_jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "allreduce.py"
    script.write_text(ALLREDUCE)
    monkeypatch.setenv("GLOG_v", "4")
    monkeypatch.chdir(tmp_path)
    job = local_jobs.build("exit", 0, workers=2, restart_policy="OnFailure")
    job.success_policy = "AllWorkers"
    job.ms_replica_specs["Worker"].container["command"] = ["python", str(script)]
    local_jobs.client.create_job(job)
    ended = local_jobs.client.wait_for_job_conditions("job", wait_timeout=180)
    logs, _ = local_jobs.client.get_job_logs("job", replica_type="Worker")
    for rank in (0, 1):
        assert f"rank {rank} of 2 node {rank} sum 3.0" in logs[f"job-worker-{rank}"]
    counts = {kind: vars(status) for kind, status in ended.status.replica_statuses.items()}
    assert counts["Worker"]["succeeded"] == 2
    assert counts["Worker"]["failed"] == 0


@pytest.mark.mindspore
def test_two_ranks_of_mpirun_allreduce(tmp_path: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed: apt-get install openmpi-bin")
    script = tmp_path / "allreduce.py"
    script.write_text(ALLREDUCE)
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2"]
    entrypoint = [sys.executable, "-m", "kfp_mindspore.podside.launchers", "--"]
    environment = {**os.environ, "GLOG_v": "4", "MS_SCHED_PORT": str(reserve_port())}
    done = subprocess.run(
        [*words, *entrypoint, sys.executable, str(script)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode in (0, CRASH_AT_EXIT), done.stderr
    for rank in (0, 1):
        assert f"rank {rank} of 2 node {rank} sum 3.0" in done.stdout


@pytest.mark.mindspore
def test_train_runs_network_factory(local_jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kfp_mindspore.data import load_dataset

    load_dataset("wine", tmp_path / "data")
    (tmp_path / "small.py").write_text(
        "from mindspore import nn\n"
        "class Small(nn.Cell):\n"
        "    def __init__(self, width):\n"
        "        super().__init__()\n"
        "        self.layers = nn.SequentialCell(nn.Dense(13, width), nn.ReLU(), nn.Dense(width, 3))\n"
        "    def construct(self, x):\n"
        "        return self.layers(x)\n"
    )
    monkeypatch.chdir(tmp_path)
    local_jobs.client.train(
        "job",
        network="small:Small",
        network_arguments={"width": 16},
        dataset=tmp_path / "data",
        output_dir=tmp_path / "out",
        trainer_parameters={"epochs": 15, "learning_rate": 0.01},
    )
    local_jobs.client.wait_for_job_conditions("job", wait_timeout=180)
    newest = json.loads((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()[-1])
    assert np.isfinite(newest["loss"])
    description = json.loads((tmp_path / "out" / "checkpoint" / "checkpoint.json").read_text())
    assert "small:Small" in json.dumps(description)
