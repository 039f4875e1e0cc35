"""MSJobClient's own work: TrainingClient's shape, functions, networks and scripts as jobs."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import NotFoundError, UserError, ValidationError
from kfp_mindspore.msjob import KubernetesBackend, LocalBackend, MSJob, MSJobClient, build_msjob
from kfp_mindspore.msjob.api.spec import ElasticPolicy
from kfp_mindspore.msjob.arguments import build_function_job, build_pod_filter
from kfp_mindspore.msjob.backends.base import Pod
from kfp_mindspore.msjob.commands import build_function_command, build_network_command, build_script_command
from kfp_mindspore.msjob.validation import validate_msjob

# TrainingClient's parameters for other kinds of job and for fine-tuning of language models.
NOT_OURS = {
    "num_chief_replicas",
    "num_ps_replicas",
    "model_provider_parameters",
    "dataset_provider_parameters",
    "init_env_vars",
    "storage_config",
}
PREFIX = "outer"


def test_methods_and_parameters_are_those_of_training_client() -> None:
    program = """
import inspect, json
from kubeflow.training import TrainingClient
print(json.dumps({name: list(inspect.signature(method).parameters)
                  for name, method in inspect.getmembers(TrainingClient, inspect.isfunction) if name[0] != "_"}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    theirs = json.loads(done.stdout.splitlines()[-1])
    assert len(theirs) == 16
    for name, parameters in theirs.items():
        signature = inspect.signature(getattr(MSJobClient, name)).parameters
        ours = list(signature)
        assert [item for item in parameters if item not in NOT_OURS] == [item for item in ours if item in parameters]
        # A parameter at another position than TrainingClient's is given by name only.
        by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
        positions = [item.name for item in signature.values() if item.kind not in by_name]
        assert positions == parameters[: len(positions)]


def test_function_runs_as_job(local_jobs: Any) -> None:
    def train(parameters: dict[str, Any]) -> None:
        import os

        print("rank", os.environ.get("MS_NODE_ID"), parameters["epochs"], "$(HOME) $$ $x", os.environ["OWN"])

    local_jobs.client.create_job(
        name="job", train_func=train, parameters={"epochs": 3}, num_workers=2, env_vars={"OWN": "1"}, labels={"a": "b"}
    )
    local_jobs.wait()
    logs, _ = local_jobs.client.get_job_logs("job", replica_type="Worker")
    assert logs == {f"job-worker-{rank}": f"rank {rank} 3 $(HOME) $$ $x 1\n" for rank in (0, 1)}
    assert local_jobs.client.get_job("job").metadata["labels"] == {"a": "b"}


def test_functions_that_cannot_travel() -> None:
    outer = "x"

    def closure() -> str:
        return outer

    with pytest.raises(UserError, match="closure uses outer of its enclosing function"):
        build_function_command(closure)
    with pytest.raises(UserError, match="with a name of its own"):
        build_function_command(lambda: None)
    with pytest.raises(UserError, match="must be a function, got <built-in function len>"):
        build_function_command(len)
    with pytest.raises(UserError, match="must be a function, got 'train'"):
        build_function_command("train")  # type: ignore[arg-type]


def test_packages_are_installed_first() -> None:
    def train() -> None:
        pass

    program = build_function_command(train, packages_to_install=["a==1"], pip_index_url="https://example.org")[-1]
    assert "['-m', 'pip', 'install', '--quiet', '-i', 'https://example.org', 'a==1']" in program
    assert program.rstrip().endswith("train()")


def empty() -> None: ...


def single(parameters: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "must have job, or name and train_func or base_image"),
        ({"name": "a"}, "must have job, or name and train_func or base_image"),
        ({"job": {}, "train_func": print}, "train_func must be absent when job is given"),
        ({"job": {"kind": "PyTorchJob"}}, "kind: must be 'MSJob'"),
        ({"job": "digits"}, "job: must be an MSJob or its manifest, got str"),
        ({"job": {}, "job_kind": "PyTorchJob"}, "job_kind: must be 'MSJob' or 'MPIJob' or"),
        ({"name": "a", "base_image": "i", "job_kind": "MPIJob"}, "kind: must be MSJob on this machine, got 'MPIJob'"),
        ({"name": "a", "base_image": "i", "num_procs_per_worker": 4}, "num_procs_per_worker: must be 1, got 4"),
        ({"name": "a", "base_image": "i", "volumes": [{"name": "v"}]}, "volume_mounts: must be one per volume"),
        ({"name": 3, "base_image": "i"}, "create_job is invalid: name: must be a text, got 3"),
        ({"name": "a", "base_image": ["i"]}, r"base_image: must be a text, got \['i'\]"),
        ({"name": "a", "base_image": "i", "num_workers": "2"}, "num_workers: must be an integer, got '2'"),
        ({"name": "a", "base_image": "i", "num_workers": True}, "num_workers: must be an integer, got True"),
        ({"name": "a", "base_image": "i", "labels": "a=b"}, "labels: must be a mapping of texts by name, got 'a=b'"),
        ({"name": "a", "base_image": "i", "env_vars": "A=1"}, "env_vars: must be a mapping .* or a list of EnvVars"),
        ({"name": "a", "base_image": "i", "volumes": {"name": "v"}}, "volumes: must be a list, got {'name': 'v'}"),
        ({"name": "a", "train_func": empty, "packages_to_install": "numpy"}, "packages_to_install: must be a list of"),
        ({"name": "a", "train_func": empty, "parameters": [1]}, r"parameters: must be a dict, got \[1\]"),
        ({"name": "a", "train_func": empty, "parameters": {}}, "parameters: empty cannot be called with a dict"),
        ({"name": "a", "train_func": single}, "parameters: single cannot be called with none"),
        ({"name": "a", "train_func": single, "parameters": {"path": Path()}}, "parameters.path: .* got PosixPath"),
        ({"name": "a", "train_func": Path}, "train_func: must be a function, got a class"),
        ({"name": "a", "train_func": "train"}, "train_func: must be a function, got 'train'"),
    ],
)
def test_create_job_refuses(local_jobs: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        local_jobs.client.create_job(**arguments)


@pytest.mark.parametrize(
    ("method", "arguments", "kind", "message"),
    [
        ("get_job", {"name": "none", "timeout": 1}, RuntimeError, "none"),
        ("get_job", {"name": "none", "job_kind": "TFJob"}, ValueError, "job_kind: must be 'MSJob', got 'TFJob'"),
        ("list_jobs", {"job_kind": "TFJob"}, ValueError, "job_kind"),
        ("get_job_conditions", {}, ValueError, "must have name or job"),
        ("is_job_running", {"job": "digits"}, ValueError, "job: must be an MSJob, got str"),
        (
            "wait_for_job_conditions",
            {"name": "none", "expected_conditions": {"Done"}},
            ValueError,
            "expected_conditions",
        ),
        ("get_job_pods", {"name": "none", "replica_type": "chief", "timeout": 1}, ValueError, "replica_type"),
        ("get_job_logs", {"name": "none", "job_kind": "MSJob", "timeout": 1}, RuntimeError, "none"),
        ("update_job", {"name": "none", "job": 3}, ValueError, "job: must be an MSJob or a patch, got int"),
        ("delete_job", {"name": "none", "job_kind": "MSJob"}, RuntimeError, "none"),
    ],
)
def test_errors_are_of_training_clients_types(
    local_jobs: Any, method: str, arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        getattr(local_jobs.client, method)(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"job_kind": "PyTorchJob"}, "job_kind: must be 'MSJob'"),
        ({"client_configuration": object()}, "client_configuration: must be absent"),
        ({"backend": "kubernetes"}, "backend: must be a LocalBackend or KubernetesBackend, got 'kubernetes'"),
        ({"backend": LocalBackend(), "context": "prod"}, "must be absent when backend is given"),
    ],
)
def test_client_refuses(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MSJobClient(**arguments)


def test_kubeconfig_and_context_select_cluster() -> None:
    backend = MSJobClient(namespace="team", config_file="config", context="prod", job_kind="MSJob").backend
    assert isinstance(backend, KubernetesBackend)
    assert (backend.kubeconfig, backend.context, backend.namespace) == ("config", "prod", "team")


def test_function_that_raises_runs_once(local_jobs: Any) -> None:
    def fail() -> None:
        raise RuntimeError("wrong loss")

    local_jobs.client.create_job(name="job", train_func=fail)
    assert local_jobs.wait().status.state == "Failed"
    assert [pod.restarts for pod in local_jobs.client.get_job_pods("job")] == [0]
    assert build_function_job("job", "team", "i", fail, None).ms_replica_specs["Worker"].restart_policy == "ExitCode"


def test_image_without_function_runs_its_entry_point() -> None:
    job = build_function_job("job", "team", "example.com/train:1", None, None, workers=2)
    assert job.ms_replica_specs["Worker"].container == {"name": "mindspore", "image": "example.com/train:1"}


def test_pods_have_metadata_and_status_of_v1_pod() -> None:
    pod = Pod("job-worker-0", "team", "Worker", 0, phase="Failed", labels={"a": "b"}, reason="OOMKilled")
    assert (pod.metadata.name, pod.metadata.namespace, pod.metadata.labels) == ("job-worker-0", "team", {"a": "b"})
    assert (pod.status.phase, pod.status.reason) == ("Failed", "OOMKilled")
    assert "metadata" not in pod.to_dict()


def test_queue_is_label(local_jobs: Any) -> None:
    job = local_jobs.build("exit", 0)
    local_jobs.client.create_job(job, queue_name="team", queue_priority="high", annotations={"note": "x"})
    metadata = local_jobs.client.get_job("job").metadata
    assert metadata["labels"] == {"kueue.x-k8s.io/queue-name": "team", "kueue.x-k8s.io/priority-class": "high"}
    assert metadata["annotations"] == {"note": "x"}


def test_events_are_returned_on_request(local_jobs: Any) -> None:
    job = local_jobs.build("exit", 0, resources={"cpu": 1})
    local_jobs.client.create_job(job)
    local_jobs.wait()
    logs, events = local_jobs.client.get_job_logs("job", verbose=True)
    assert list(logs) == ["job-worker-0"]
    assert [line.split()[1] for line in events["job"]] == ["NotHonoured:", "Started:", "JobSucceeded:"]


def test_filters() -> None:
    with pytest.raises(ValidationError, match="replica_type: must be one of Scheduler, PS, Worker, got 'chief'"):
        build_pod_filter(replica_type="chief")


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({}, []),
        ({"epochs": 5, "learning_rate": 0.1}, ["--epochs", "5", "--learning-rate", "0.1"]),
        ({"quick": True, "slow": False, "other": None}, ["--quick"]),
    ],
)
def test_options_of_script(parameters: dict[str, Any], words: list[str]) -> None:
    assert build_script_command("a.py", parameters) == ["python", "a.py", *words]


def test_command_of_network() -> None:
    assert build_network_command("net:LeNet", {"classes": 10}, {"epochs": 2, "metrics": ["accuracy", "loss"]}) == [
        *("python", "-m", "kfp_mindspore.training", "net:LeNet", "--network-arguments", '{"classes": 10}'),
        *("--epochs", "2", "--metrics", "accuracy,loss"),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "must have network .* or script, got neither"),
        ({"network": "a:b", "script": "a.py"}, "got both"),
        ({"network": "a:b"}, "dataset is required"),
        ({"network": "a:b", "dataset": "d"}, "output_dir is required"),
        ({"network": "a.b"}, "network: must be 'module:factory', got 'a.b'"),
        ({"network": "a:b", "trainer_parameters": {"epoch": 1}}, "trainer_parameters.epoch: unknown"),
        ({"network": "a:b", "network_arguments": {"x": object()}}, "network_arguments: must be JSON types"),
        ({"script": "missing.py"}, "no such script 'missing.py'"),
    ],
)
def test_train_refuses(local_jobs: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        local_jobs.client.train("job", **arguments)
    assert local_jobs.client.list_jobs() == []


class Recorder(KubernetesBackend):
    """A cluster that keeps the job which it is given."""

    def create(self, job: MSJob, *, dry_run: bool = False) -> MSJob:
        self.job = job
        return job


def test_variables_of_this_machine_do_not_reach_pods_of_elastic_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFP_MINDSPORE_CHECKPOINT_DIR", "/c")
    job = build_msjob("job", command=["true"], image="a")
    job.elastic_policy = ElasticPolicy(min_replicas=1)
    with pytest.warns(UserWarning, match="elastic without KFP_MINDSPORE_CHECKPOINT_DIR"):
        MSJobClient(Recorder(namespace="team")).create_job(job)


def test_relative_directories_of_cluster_job_belong_to_its_pods() -> None:
    backend = Recorder(namespace="team")
    MSJobClient(backend).train("job", script="train.py", dataset="data/mnist", output_dir="out", base_image="a")
    env = {item["name"]: item["value"] for item in backend.job.ms_replica_specs["Worker"].container["env"]}
    assert env == {
        "KFP_MINDSPORE_DATASET_DIR": "data/mnist",
        "KFP_MINDSPORE_OUTPUT_DIR": "out",
        "KFP_MINDSPORE_CHECKPOINT_DIR": "out/checkpoints",
    }


def test_pods_of_missing_job_are_not_found(local_jobs: Any) -> None:
    for method in (local_jobs.client.get_job_pods, local_jobs.client.get_job_pod_names):
        with pytest.raises(NotFoundError, match="missing"):
            method("missing")


def test_empty_directories_are_volumes_of_pod() -> None:
    job = build_msjob("job", command=["python"], image="a", empty_dirs={"/dev/shm": "8Gi", "/scratch": ""})
    pod = job.ms_replica_specs["Worker"].template["spec"]
    assert pod["volumes"] == [
        {"name": "empty-dir-0", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
        {"name": "empty-dir-1", "emptyDir": {}},
    ]
    assert pod["containers"][0]["volumeMounts"] == [
        {"name": "empty-dir-0", "mountPath": "/dev/shm"},
        {"name": "empty-dir-1", "mountPath": "/scratch"},
    ]


@pytest.mark.parametrize(
    ("empty_dirs", "error"),
    [
        ({"shm": "1Gi"}, "empty_dirs: must be absolute paths, got 'shm'"),
        ({"/dev/shm": "8 GB"}, "sizeLimit: must be a"),
    ],
)
def test_wrong_empty_directories_are_refused(empty_dirs: dict[str, str], error: str) -> None:
    with pytest.raises(ValidationError, match=error):
        validate_msjob(build_msjob("job", command=["python"], image="a", empty_dirs=empty_dirs))


@pytest.mark.parametrize(("env", "count"), [({}, 1), ({"KFP_MINDSPORE_CHECKPOINT_DIR": "/c"}, 0)])
def test_elastic_job_without_checkpoints_is_warned_of(
    local_jobs: Any, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], count: int
) -> None:
    monkeypatch.delenv("KFP_MINDSPORE_CHECKPOINT_DIR", raising=False)
    job = build_msjob("job", command=["true"], env=env)
    job.elastic_policy = ElasticPolicy(min_replicas=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        local_jobs.client.create_job(job)
    assert ["elastic without KFP_MINDSPORE_CHECKPOINT_DIR" in str(item.message) for item in caught] == [True] * count


def test_train_runs_script_with_its_directories(local_jobs: Any, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        "print(*sys.argv[1:])\n"
        "print(*(os.environ[f'KFP_MINDSPORE_{name}_DIR'] for name in ('DATASET', 'OUTPUT', 'CHECKPOINT')))\n"
    )
    local_jobs.client.train(
        "job", script=script, dataset=tmp_path, output_dir=tmp_path / "out", trainer_parameters={"epochs": 2}
    )
    local_jobs.wait()
    assert local_jobs.client.get_job_logs("job")[0]["job-worker-0"].splitlines() == [
        "--epochs 2",
        f"{tmp_path} {tmp_path}/out {tmp_path}/out/checkpoints",
    ]


def test_supervisor_imports_no_heavy_package() -> None:
    import kfp_mindspore

    root = Path(kfp_mindspore.__file__).parent.parent
    program = (
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        "import kfp_mindspore.msjob.backends.supervisor, threading\n"
        "assert not {'yaml', 'click', 'numpy'} & sys.modules.keys()\n"
        "assert threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-I", "-c", program], check=True)
