"""Literal signatures and hand-written command options match the declaration, see `kfp_mindspore.options`.

An option is added to its dataclass first; this test then names each signature that lacks it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import kfp_mindspore
from kfp_mindspore.cli.pipeline.options import PipelineServerOptions, RunOptions
from kfp_mindspore.components import (
    compress_model,
    create_language_model,
    deploy_kserve,
    evaluate_language_model,
    export_mindir,
    finetune_dual_encoder,
    finetune_language_model,
    index_pictures,
    load_dataset,
    monitor_drift,
    notify,
    sweep_msjob,
    train_msjob,
)
from kfp_mindspore.compression.options import CompressionChanges, CompressionOptions
from kfp_mindspore.data.options import DatasetChanges, DatasetOptions
from kfp_mindspore.dsl import (
    set_restart_policy,
    set_run_policy,
    set_storage,
    set_success_policy,
    set_worker_count,
    set_worker_pod,
)
from kfp_mindspore.images.plan import ImageOptions
from kfp_mindspore.inference import Service
from kfp_mindspore.inference.service import DeploymentOptions
from kfp_mindspore.lm.options import EvaluationOptions, FinetuneOptions, NetworkOptions
from kfp_mindspore.mindir.monitoring.options import DriftOptions
from kfp_mindspore.mindir.options import ExportChanges, ExportOptions
from kfp_mindspore.msjob import MSJobClient
from kfp_mindspore.msjob.build import JobChanges, JobOptions
from kfp_mindspore.options import list_options, option
from kfp_mindspore.pipelines import compress_and_deploy, sweep_and_deploy
from kfp_mindspore.runs import RemoteClient
from kfp_mindspore.runs.notice import NotifyOptions
from kfp_mindspore.sweeps.options import SweepChanges, SweepOptions
from kfp_mindspore.vision.index_options import IndexOptions
from kfp_mindspore.vision.options import ContrastiveOptions
from mindsporeserver.options import ServerFlags
from tests.support.option_signatures import CLIENT, COMPONENT, SETTER, CommandOptions, Signature

_OF_SETTERS = "a setter sets it"
_WITHOUT_JOB_OPTIONS = {
    **dict.fromkeys(
        (
            *("success_policy", "start_timeout_seconds", "ttl_seconds_after_finished", "clean_pod_policy"),
            *("resources", "empty_dirs", "labels", "annotations", "pod_labels", "pod_annotations"),
            *("image_pull_secrets", "service_account", "security_context", "delete_after_done"),
        ),
        _OF_SETTERS,
    ),
    "working_dir": "the image has it",
}
_CLIENT_NAMES = {
    "workers": "num_workers",
    "resources": "resources_per_worker",
    "env": "env_vars",
    "image": "base_image",
}
SIGNATURES = [
    Signature(DatasetOptions, load_dataset, COMPONENT),
    Signature(
        ExportOptions,
        export_mindir,
        COMPONENT,
        names={"sample_count": "samples"},
        without={
            "batch": "a parameter has one type, in which 0 is `free`",
            **dict.fromkeys(("metadata", "tolerance", "dimensions", "strategy"), "no argument yet"),
            "device_id": "a pod has its own devices",
        },
    ),
    Signature(
        Service,
        deploy_kserve,
        COMPONENT,
        names={"name": "service_name"},
        without={
            **dict.fromkeys(("model_dir", "digest", "model_format"), "of the artifact"),
            **dict.fromkeys(("port", "grpc_port", "host"), "of this machine"),
        },
    ),
    Signature(DeploymentOptions, deploy_kserve, COMPONENT),
    Signature(CompressionOptions, compress_model, COMPONENT),
    Signature(EvaluationOptions, evaluate_language_model, COMPONENT),
    Signature(DriftOptions, monitor_drift, COMPONENT),
    Signature(IndexOptions, index_pictures, COMPONENT),
    Signature(FinetuneOptions, finetune_language_model, COMPONENT),
    Signature(ContrastiveOptions, finetune_dual_encoder, COMPONENT),
    Signature(NetworkOptions, create_language_model, COMPONENT),
    Signature(NotifyOptions, notify, COMPONENT),
    *(
        Signature(JobOptions, component, COMPONENT, without=_WITHOUT_JOB_OPTIONS)
        for component in (train_msjob, sweep_msjob)
    ),
    Signature(SweepOptions, sweep_msjob, COMPONENT),
    Signature(
        JobOptions,
        set_run_policy,
        SETTER,
        only=(
            *("backoff_limit", "active_deadline_seconds", "start_timeout_seconds", "ttl_seconds_after_finished"),
            *("clean_pod_policy", "delete_after_done"),
        ),
    ),
    Signature(JobOptions, set_restart_policy, SETTER, {"restart_policy": "policy"}, ("restart_policy",)),
    Signature(JobOptions, set_success_policy, SETTER, {"success_policy": "policy"}, ("success_policy",)),
    Signature(JobOptions, set_worker_count, SETTER, {"workers": "count"}, ("workers",)),
    Signature(JobOptions, set_storage, SETTER, only=("storage",)),
    Signature(
        JobOptions,
        set_worker_pod,
        SETTER,
        {"pod_labels": "labels", "pod_annotations": "annotations"},
        only=(
            *("pod_labels", "pod_annotations", "image_pull_secrets", "service_account", "security_context"),
            "empty_dirs",
        ),
    ),
    *(
        Signature(
            JobOptions,
            method,
            CLIENT,
            {**_CLIENT_NAMES, "queue": "queue_name"},
            only=("workers", "image", "env", "resources", "labels", "annotations", "queue"),
        )
        for method in (MSJobClient.train, MSJobClient.create_job)
    ),
    Signature(JobOptions, MSJobClient.create_job, CLIENT, only=("queue_priority", "device")),
    Signature(
        PipelineServerOptions,
        RemoteClient,
        CLIENT,
        without={"host": "required", **dict.fromkeys(("kubeconfig", "context"), "a Cluster has it")},
    ),
    *(
        Signature(RunOptions, method, CLIENT, without={"no_cache": "its opposite, `cache`"})
        for method in (RemoteClient.run, RemoteClient.schedule)
    ),
]
# Keywords of any type, by file, with their number.
ANY_KEYWORDS = {
    # KFP's own functions, which are patched.
    "compat/kfp_tasks.py": 3,
    # Ray's and mindcv's options.
    "ray/serve.py": 1,
    "workloads/mindcv/network.py": 2,
    # `dataclasses.replace` for users.
    "training/config.py": 1,
}
# Their declarations would make these commands longer, or change their help.
COMMANDS = [
    CommandOptions(
        ServerFlags,
        "serve",
        ("workers", "max_batch", "nonfinite", "allow_model_code", "max_lora_rank", "device"),
    ),
    CommandOptions(DeploymentOptions, "service create", ("canary", "wait_seconds"), {"wait_seconds": "wait"}),
    *(
        CommandOptions(DeploymentOptions, path, ("wait_seconds",), {"wait_seconds": "wait"})
        for path in ("serve", "service promote", "service rollback")
    ),
    CommandOptions(
        ImageOptions, "image build", ("base", "platform", "requirements", "workdir", "user", "env", "labels")
    ),
    CommandOptions(ImageOptions, "image runtime", ("platform",)),
]


def test_job_option_without_component_argument_has_a_setter() -> None:
    setters = {name for entry in SIGNATURES if entry.form == SETTER for name in entry.only}
    (component,) = [entry for entry in SIGNATURES if entry.function is train_msjob]

    # Resources and the job's metadata are set by key, by setters of their own.
    assert set(component.without) - setters == {"working_dir", "resources", "labels", "annotations"}


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.name)
def test_signature_matches_declaration(signature: Signature) -> None:
    assert signature.list_differences() == []


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.path)
def test_command_matches_declaration(command: CommandOptions) -> None:
    assert command.list_differences() == []


@pytest.mark.parametrize(
    ("declaration", "changes", "without"),
    [
        (JobOptions, JobChanges, set()),
        (DatasetOptions, DatasetChanges, set()),
        (ExportOptions, ExportChanges, set()),
        (CompressionOptions, CompressionChanges, set()),
        (SweepOptions, SweepChanges, {"objective"}),
    ],
)
def test_keywords_are_fields_of_declaration(declaration: type[Any], changes: type[Any], without: set[str]) -> None:
    assert changes.__annotations__.keys() | without == {field.name for field in dataclasses.fields(declaration)}


def test_signatures_keep_their_types() -> None:
    """Assert that few functions take keywords of any type: mypy and "find references" lose each such option."""
    root = Path(kfp_mindspore.__file__).parent
    found = {
        file.relative_to(root).as_posix(): count
        for file in sorted(root.rglob("*.py"))
        if (count := len(re.findall(r"\*\*\w+: Any\b|\blocals\(\)", file.read_text(encoding="utf-8"))))
    }
    assert found == ANY_KEYWORDS


@dataclass
class Brew:
    """Options of a pot.

    Args:
        pot: Name of the pot.
        cups: Number of cups. At most nine.
        labels: Labels of the pot.
        filters: Names of filters.
    """

    pot: str
    cups: int | None = None
    labels: Mapping[str, Any] = option({})
    filters: Sequence[str] = ()


def brew(pot: str, cups: int = 0, labels: dict[str, Any] = {}, filters: list[str] = []) -> None:  # noqa: B006
    """Brew.

    Args:
        pot: Name of the pot.
        cups: Number of cups; 0 for all.
        labels: Labels of the pot.
        filters: Names of filters.
    """


def set_pot(task: Any, count: int | None = None) -> None:
    """Set it.

    Args:
        task: A task.
        count: Number of cups.
    """


def brew_wrongly(pot: str = "", cups: float = 1, filters: Sequence[str] = ()) -> None:
    """Brew.

    Args:
        pot: Name of the pot.
        cups: How many.
    """


def test_equal_signatures_have_no_differences() -> None:
    assert Signature(Brew, brew, COMPONENT).list_differences() == []
    assert Signature(Brew, set_pot, SETTER, {"cups": "count"}, only=("cups",)).list_differences() == []


def test_each_difference_names_its_place() -> None:
    assert Signature(Brew, brew_wrongly, CLIENT, only=()).list_differences() == [
        "brew_wrongly: pot: has the default '', expected <class 'inspect._empty'>",
        "brew_wrongly: cups: has the type <class 'float'>, expected int of object",
        "brew_wrongly: cups: has the default 1, expected None",
        "brew_wrongly: cups: is described as 'How many.', expected 'Number of cups' and further words if any",
        "brew_wrongly: labels: is no argument; Brew.labels is dict",
        "brew_wrongly: filters: is described as '', expected 'Names of filters' and further words if any",
    ]


def test_each_difference_of_command_names_its_option() -> None:
    names = {"cups": "max_batch", "pot": "name", "filters": "workers"}

    assert CommandOptions(Brew, "serve", ("pot", "cups", "filters"), names).list_differences() == [
        "serve: --name: has required False, expected True",
        "serve: --max-batch: has minimum 1, expected None",
        "serve: --max-batch: has the default 64, expected None",
        "serve: --workers: has minimum 1, expected None",
        "serve: --workers: has multiple False, expected True",
    ]


def test_unknown_field_in_table_is_named() -> None:
    differences = Signature(Brew, set_pot, SETTER, only=("cup",)).list_differences()

    assert differences == ["set_pot: cup: is no field of Brew"]


@pytest.mark.parametrize(
    ("pipeline", "declaration", "names"),
    [
        (compress_and_deploy, CompressionOptions, ["method", "weights"]),
        (sweep_and_deploy, SweepOptions, ["trial_timeout", "sampler", "pruner", "seed"]),
    ],
)
def test_pipeline_has_defaults_of_declaration(pipeline: Any, declaration: type[Any], names: list[str]) -> None:
    declared = {entry.name: entry.literal_default for entry in list_options(declaration)}
    inputs = pipeline.component_spec.inputs
    assert {name: inputs[name].default for name in names} == {name: declared[name] for name in names}
