"""Fields of a pod template on the local backend."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.local.process import ProcessSpec
from kfp_mindspore.msjob import MSJob, build_msjob
from kfp_mindspore.msjob.backends.gang import build_process_spec, check_job
from kfp_mindspore.msjob.commands import get_script
from kfp_mindspore.msjob.decisions.topology import Endpoints, build_topology
from kfp_mindspore.settings import TOPOLOGY_DEFAULTS

PATH = "spec.msReplicaSpecs.Worker.template.spec"
CONTAINER = f"{PATH}.containers[0]"


def make_job(container: dict[str, Any] | None = None, pod: dict[str, Any] | None = None) -> MSJob:
    """Return a job with fields added to its container and pod."""
    document = build_msjob("job", command=["python", "-c", "pass"], workers=2).to_dict()
    spec = document["spec"]["msReplicaSpecs"]["Worker"]["template"]["spec"]
    spec["containers"][0].update(container or {})
    for key, value in (pod or {}).items():
        spec[key] = spec.get(key, []) + value if isinstance(value, list) else value
    return MSJob.from_dict(document)


def make_plan(job: MSJob, cwd: Path = Path("/work"), member: int = 1, **environment: str) -> ProcessSpec:
    """Return the plan of a member; 0 is the scheduler, 1 worker 0."""
    members = build_topology(job, Endpoints("127.0.0.1", 4000)).members
    return build_process_spec(job, members[member], environment=environment, cwd=cwd)


@pytest.mark.parametrize("word", ["python", "python3"])
def test_python_is_this_interpreter(word: str) -> None:
    plan = make_plan(make_job({"command": [word, "a.py"], "args": ["--epochs", "3"]}))
    assert plan.argv == (sys.executable, "a.py", "--epochs", "3")
    assert plan.cwd == Path("/work")


def test_other_programs_stay() -> None:
    assert make_plan(make_job({"command": ["bash", "python"]})).argv == ("bash", "python")


def test_layers_of_environment() -> None:
    env = [{"name": "B", "value": "own"}, {"name": "MS_SCHED_PORT", "value": "5000"}, {"name": "EMPTY"}]
    # Of resources, which are ignored.
    env += [{"name": "KFP_MINDSPORE_POD_DEVICE", "value": "GPU"}]
    plan = make_plan(make_job({"env": env}), A="outer", B="outer", MS_NODE_ID="7", OMP_NUM_THREADS="5")
    assert plan.environment == {
        "A": "outer",
        "B": "own",
        "EMPTY": "",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "5",
        "MS_ROLE": "MS_WORKER",
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": "5000",
        "MS_WORKER_NUM": "2",
        **TOPOLOGY_DEFAULTS,
        "MS_NODE_ID": "0",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
    }


@pytest.mark.parametrize(
    ("cores", "member", "threads", "own"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], 1, "4", "0,1,2,3"),
        ([0, 1, 4, 5, 6], 2, "2", "4,5"),
        ([0, 1, 2, 3], 0, "1", None),
        ([3], 2, "1", None),
    ],
)
def test_workers_share_cores(
    cores: list[int], member: int, threads: str, own: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kfp_mindspore.msjob.backends.gang.list_cores", lambda: cores)
    environment = make_plan(make_job(), member=member).environment
    assert (environment["OMP_NUM_THREADS"], environment.get("KFP_MINDSPORE_CORES")) == (threads, own)


def test_worker_with_its_own_number_of_threads_is_not_bound() -> None:
    assert "KFP_MINDSPORE_CORES" not in make_plan(make_job(), OMP_NUM_THREADS="3").environment
    own = {"env": [{"name": "OMP_NUM_THREADS", "value": "3"}]}
    assert "KFP_MINDSPORE_CORES" not in make_plan(make_job(own)).environment


def test_single_process_has_all_cores() -> None:
    job = build_msjob("job", command=["python", "-c", "pass"])
    assert "OMP_NUM_THREADS" not in make_plan(job, member=0).environment


def test_references_to_variables() -> None:
    env = [{"name": "ROOT", "value": "/data"}, {"name": "DIR", "value": "$(ROOT)/$(MS_NODE_ID)"}]
    job = make_job({"env": env, "command": ["echo", "$(DIR)", "$$(DIR)", "$(UNKNOWN)", "$HOME", "a$$b"]})
    assert make_plan(job).argv == ("echo", "/data/0", "$(DIR)", "$(UNKNOWN)", "$HOME", "a$b")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("metadata.name", "job-worker-0"),
        ("metadata.namespace", "default"),
        ("metadata.labels['training.kubeflow.org/replica-index']", "0"),
        ("metadata.annotations['absent']", ""),
        ("status.podIP", "127.0.0.1"),
    ],
)
def test_fields_of_pod(field: str, value: str) -> None:
    job = make_job({"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": field}}}]})
    assert check_job(job, environment=dict(os.environ), cwd=Path("/")) == []
    assert make_plan(job).environment["X"] == value


@pytest.mark.parametrize(
    ("container", "pod", "warning"),
    [
        ({"image": "registry/trainer:1"}, {}, f"{CONTAINER}.image: ignored"),
        ({"resources": {"limits": {"cpu": "1"}}}, {}, f"{CONTAINER}.resources: ignored"),
        (
            {"volumeMounts": [{"name": "shm", "mountPath": "/tmp"}]},
            {"volumes": [{"name": "shm", "emptyDir": {}}]},
            f"{CONTAINER}.volumeMounts[0].mountPath: this machine's own",
        ),
        (
            {"volumeMounts": [{"name": "empty-dir-0", "mountPath": "/dev/shm"}]},
            {"volumes": [{"name": "empty-dir-0", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}]},
            f"{CONTAINER}.volumeMounts[0].mountPath: this machine's own /dev/shm is used",
        ),
        ({}, {"containers": [{"name": "sidecar"}]}, f"{PATH}.containers[1]: 'sidecar' does not run"),
    ],
)
def test_warnings(container: dict[str, Any], pod: dict[str, Any], warning: str) -> None:
    warnings = check_job(make_job(container, pod), environment=dict(os.environ), cwd=Path("/"))
    assert len(warnings) == 1
    assert warnings[0].startswith(warning)


@pytest.mark.parametrize(
    ("container", "pod", "error"),
    [
        ({"command": None}, {}, f"{CONTAINER}.command: is required, no image runs on this machine; append it"),
        ({"command": ["no-such-program"]}, {}, f"{CONTAINER}.command[0]: must be a program of this machine"),
        ({"command": ["./no-such-program"]}, {}, f"{CONTAINER}.command[0]: must be a program of this machine"),
        ({"command": ["python", "-u", "missing.py"]}, {}, f"{CONTAINER}.command: no such script 'missing.py' in "),
        ({"workingDir": "nowhere"}, {}, f"{CONTAINER}.workingDir: must be a directory"),
        (
            {"volumeMounts": [{"name": "data", "mountPath": "/no/such/place"}]},
            {"volumes": [{"name": "data", "emptyDir": {}}]},
            f"{CONTAINER}.volumeMounts[0].mountPath: must exist on this machine",
        ),
        ({}, {"initContainers": [{"name": "init"}]}, f"{PATH}.initContainers: must be absent"),
        ({"envFrom": [{"secretRef": {"name": "s"}}]}, {}, f"{CONTAINER}.envFrom[0]: must be absent or optional"),
        (
            {"env": [{"name": "T", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
            {},
            f"{CONTAINER}.env[0].valueFrom (T): must be a value or optional",
        ),
        (
            {"env": [{"name": "T", "valueFrom": {"fieldRef": {"fieldPath": "status.phase"}}}]},
            {},
            f"{CONTAINER}.env[0].valueFrom (T): cannot read status.phase",
        ),
    ],
)
def test_refusals(container: dict[str, Any], pod: dict[str, Any], error: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError) as caught:
        check_job(make_job(container, pod), environment=dict(os.environ), cwd=tmp_path)
    assert caught.value.exit_code == 2
    assert [message.startswith(error) for message in caught.value.errors] == [True]


def test_optional_sources_are_left_out() -> None:
    source = {"configMapKeyRef": {"name": "c", "key": "k", "optional": True}}
    job = make_job(
        {"env": [{"name": "T", "valueFrom": source}], "envFrom": [{"secretRef": {"name": "s", "optional": True}}]}
    )
    assert check_job(job, environment=dict(os.environ), cwd=Path("/")) == []
    assert "T" not in make_plan(job).environment


@pytest.mark.parametrize(
    ("words", "script"),
    [
        (["a.py", "b"], "a.py"),
        (["-u", "-W", "ignore", "-X", "dev", "a.py"], "a.py"),
        (["-m", "package"], None),
        (["-um", "package"], None),
        (["-c", "pass"], None),
        (["-"], None),
        ([], None),
    ],
)
def test_find_script(words: list[str], script: str | None) -> None:
    assert get_script((sys.executable, *words)) == script
    assert get_script(("bash", *words)) is None
