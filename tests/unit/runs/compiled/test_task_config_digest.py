from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from kfp import compiler, dsl, kubernetes

from kfp_mindspore.components.evaluation.evaluate_mindir import evaluate_mindir
from kfp_mindspore.components.training.train_msjob import train_msjob
from kfp_mindspore.runs import compile_text
from kfp_mindspore.runs.compiled.spec import parse_spec
from kfp_mindspore.runs.compiled.task_config_digest import add_task_config_digests
from kfp_mindspore.settings import TASK_CONFIG_DIGEST_VARIABLE


def get_digests(tmp_path: Path, *setters: Callable[[Any], Any]) -> list[str]:
    """Compile a pipeline with the setters on its training task; return the digests of all steps."""

    @dsl.pipeline(name="digest")
    def pipeline(cpu: str = "2"):  # type: ignore[no-untyped-def]
        task = train_msjob(command=["true"])
        for setter in setters:
            setter(task)

    file = tmp_path / "digest.yaml"
    compiler.Compiler().compile(pipeline, str(file))
    executors = parse_spec(compile_text(str(file)))["deploymentSpec"]["executors"]
    environment = [entry for executor in executors.values() for entry in executor["container"].get("env", [])]
    return [entry["value"] for entry in environment if entry["name"] == TASK_CONFIG_DIGEST_VARIABLE]


def test_task_without_settings_is_unchanged(tmp_path: Path) -> None:
    assert get_digests(tmp_path) == []


def test_each_setting_has_its_own_digest(tmp_path: Path) -> None:
    setters: list[Callable[[Any], Any]] = [
        lambda task: task.set_cpu_limit("2"),
        lambda task: task.set_cpu_limit("3"),
        lambda task: task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(8),
        lambda task: task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(16),
        lambda task: kubernetes.add_toleration(task, key="gpu", operator="Exists"),
        lambda task: kubernetes.add_node_selector(task, "zone", "a"),
        lambda task: kubernetes.mount_pvc(task, "data", "/data"),
        lambda task: kubernetes.use_secret_as_env(task, "s3", {"key": "KEY"}),
    ]
    digests = [get_digests(tmp_path, setter) for setter in setters]
    assert [len(found) for found in digests] == [1] * len(setters)
    assert len({found[0] for found in digests}) == len(setters)
    assert get_digests(tmp_path, setters[0]) == digests[0]


def test_other_steps_are_unchanged() -> None:
    document = json_format.MessageToDict(evaluate_mindir.pipeline_spec)
    (executor,) = document["deploymentSpec"]["executors"].values()
    executor["container"]["resources"] = {"resourceCpuLimit": "2"}
    assert add_task_config_digests([document]) == [document]
