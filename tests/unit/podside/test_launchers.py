from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kfp_mindspore.errors import UserError
from kfp_mindspore.settings import TOPOLOGY_DEFAULTS
from kfp_mindspore.training.workers.rendezvous import (
    Rendezvous,
    build_environment,
    read_rendezvous,
    resolve_address,
)
from tests.support.training.jobs import eventually, is_alive

MODULE = "kfp_mindspore.podside.launchers"
# Writes the MS_* of a process into the directory of its argument.
RECORD = """
import json, os, sys
found = {name: value for name, value in os.environ.items() if name.startswith("MS_")}
with open(os.path.join(sys.argv[1], found["MS_NODE_ID"]), "w") as file:
    json.dump(found, file)
"""

CASES: list[tuple[dict[str, str], Rendezvous]] = [
    (
        {
            "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        },
        Rendezvous("", 1, 2, "", 8118, 1),
    ),
    (
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "MS_SCHED_HOST": "a.b", "MS_SCHED_PORT": "2222"},
        Rendezvous("", 0, 2, "a.b", 2222),
    ),
    (
        {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "3", "MPI_LOCALNRANKS": "4"},
        Rendezvous("", 3, 4, "", 8118, 3),
    ),
    (
        {"PET_NODE_RANK": "1", "PET_NNODES": "2", "PET_MASTER_ADDR": "job-node-0-0.job", "PET_MASTER_PORT": "29400"},
        Rendezvous("", 1, 2, "job-node-0-0.job", 29400),
    ),
    (
        {"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": "job-node-0-0.job:6666"},
        Rendezvous("", 1, 2, "job-node-0-0.job", 6666),
    ),
    (
        {"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "master", "MASTER_PORT": "23456"},
        Rendezvous("", 2, 3, "master", 23456),
    ),
    (
        {"MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "2", "MS_SCHED_HOST": "s", "VC_TASK_INDEX": "1"},
        Rendezvous("MS_WORKER", 1, 2, "s", 8118),
    ),
    (
        {"MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "2", "MS_SCHED_HOST": "s", "JOB_COMPLETION_INDEX": "1"},
        Rendezvous("MS_WORKER", 1, 2, "s", 8118),
    ),
    (
        {"MS_ROLE": "MS_SCHED", "MS_WORKER_NUM": "2", "MS_SCHED_HOST": "s", "JOB_COMPLETION_INDEX": "0"},
        Rendezvous("MS_SCHED", -1, 2, "s", 8118),
    ),
    ({"WORLD_SIZE": "1"}, Rendezvous("", 0, 1, "", 8118)),
]  # fmt: skip


@pytest.mark.parametrize(("environ", "expected"), CASES)
def test_launchers(environ: dict[str, str], expected: Rendezvous) -> None:
    assert read_rendezvous(environ) == expected


@pytest.mark.parametrize(
    ("environ", "error"),
    [
        ({}, "no world size in the environment, expected one of MS_WORKER_NUM, OMPI_COMM_WORLD_SIZE"),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "no rank in the environment"),
        ({"RANK": "x", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "RANK: must be a whole number, got 'x'"),
        ({"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}, "the 4 ranks are on several machines"),
    ],
)
def test_incomplete_environments_are_refused(environ: dict[str, str], error: str) -> None:
    with pytest.raises(UserError, match=error):
        read_rendezvous(environ)


def test_environment_of_worker() -> None:
    environment = build_environment(
        Rendezvous("", 1, 2, "a", 8118, 1), "10.0.0.1", {"A": "b", "MS_SCHED_HOST": "a", "DEVICE_ID": "7"}
    )
    assert environment == {
        "A": "b",
        "DEVICE_ID": "7",
        "MS_NODE_ID": "1",
        **TOPOLOGY_DEFAULTS,
        "MS_ROLE": "MS_WORKER",
        "MS_SCHED_HOST": "10.0.0.1",
        "MS_SCHED_PORT": "8118",
        "MS_WORKER_NUM": "2",
    }


def test_names_are_resolved_once_they_exist() -> None:
    answers = iter([OSError("unknown"), "10.0.0.7"])

    def resolve(host: str) -> str:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return str(answer)

    assert resolve_address("scheduler", resolve=resolve) == "10.0.0.7"
    with pytest.raises(UserError, match="'scheduler' has no address after 0 s"):
        resolve_address("scheduler", timeout=0, resolve=lambda _: (_ for _ in ()).throw(OSError("unknown")))
    # The launcher's name for itself, such as localhost in rank 0, is not reachable for others.
    assert resolve_address("localhost", resolve=lambda host: "127.0.0.1" if host == "localhost" else "10.1.1.1") == (
        "10.1.1.1"
    )


@pytest.mark.parametrize(
    ("program", "code"), [("pass", 0), ("import os, sys; sys.exit(os.environ['MS_ROLE'] == 'MS_WORKER' and 7)", 7)]
)
def test_rank_0_ends_with_code_of_its_worker(program: str, code: int) -> None:
    environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    done = subprocess.run([sys.executable, "-m", MODULE, "--", sys.executable, "-c", program], env=environ, check=False)
    assert done.returncode == code


def test_sigterm_terminates_rank_0_before_scheduler(tmp_path: Path) -> None:
    # The worker exits with 143 only while the scheduler lives, as for a checkpoint.
    program = """
import os, pathlib, signal, sys
role, home = os.environ["MS_ROLE"], pathlib.Path(sys.argv[1])
def stop(*_):
    os.kill(int((home / "MS_SCHED").read_text()), 0)
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
(home / role).write_text(str(os.getpid()))
while True:
    signal.pause()
"""
    environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    command = [sys.executable, "-m", MODULE, "--", sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, env=environ) as process:
        eventually(lambda: len([file for file in tmp_path.iterdir() if file.read_text()]) == 2)
        process.terminate()
        assert process.wait(30) == 143
    assert not is_alive(int((tmp_path / "MS_SCHED").read_text()))


def test_command_is_required() -> None:
    done = subprocess.run([sys.executable, "-m", MODULE, "python"], capture_output=True, text=True, check=False)
    assert (done.returncode, "expected a command after --" in done.stderr) == (2, True)


def test_mpirun_starts_ranks_and_one_scheduler(tmp_path: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed: apt-get install openmpi-bin")
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "4"]
    command = [sys.executable, "-c", RECORD, str(tmp_path)]
    subprocess.run([*words, sys.executable, "-m", MODULE, "--", *command], check=True, timeout=120)
    found = {file.name: json.loads(file.read_text()) for file in tmp_path.iterdir()}
    assert {name: item["MS_ROLE"] for name, item in found.items()} == {
        "scheduler": "MS_SCHED",
        **{str(rank): "MS_WORKER" for rank in range(4)},
    }
    assert {(item["MS_WORKER_NUM"], item["MS_SCHED_HOST"]) for item in found.values()} == {("4", "127.0.0.1")}
