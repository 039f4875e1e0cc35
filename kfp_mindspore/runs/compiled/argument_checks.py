"""Pipeline step arguments, validated before a step starts.

A task's arguments are known as far as they are constants, defaults or pipeline parameters. They are passed to the
functions with which this package's steps validate them, so that no run fails after its training on a value that a later
step refuses.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.lm.options import EvaluationOptions, FinetuneOptions, NetworkOptions
from kfp_mindspore.msjob.build import JobOptions
from kfp_mindspore.options import from_literals
from kfp_mindspore.runs.compiled.known_tasks import KnownTask, list_known_tasks
from kfp_mindspore.vision.index_options import IndexOptions

Check = Callable[..., object]
_EMPTY = inspect.Parameter.empty


def check_arguments(spec: Mapping[str, Any], arguments: Mapping[str, Any] | None) -> None:
    """Refuse task arguments that their steps would refuse.

    Args:
        spec: A compiled pipeline.
        arguments: Run arguments by name, without defaults; None for a pipeline that is compiled, whose empty defaults
            may stand for run arguments.

    Raises:
        ValidationError: The message names each task and parameter.
    """
    errors = [
        f"step {task.name}: {message}"
        for task in list_known_tasks(spec, arguments)
        for check in _list_checks(task)
        for message in _list_errors(check, task.arguments)
    ]
    if errors:
        raise ValidationError(errors, subject=f"pipeline {spec['pipelineInfo']['name']}")


def _list_checks(task: KnownTask) -> list[Check]:
    checks = [check for function in task.functions for check in _CHECKS.get(function, ())]
    # A gate: in user components too.
    return [*checks, _check_gate] if {"metric", "threshold"} <= task.parameters else checks


def _list_errors(check: Check, known: Mapping[str, Any]) -> Sequence[str]:
    """Return a check's errors; none if an argument that it requires is not known."""
    parameters = inspect.signature(check).parameters.values()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    names = {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD}
    required = {parameter.name for parameter in parameters if parameter.name in names and parameter.default is _EMPTY}
    if required - set(known):
        return []
    try:
        given = {name: value for name, value in known.items() if takes_all or name in names}
        from_literals(check, given) if isinstance(check, type) else check(**given)
    except ValidationError as error:
        return error.errors
    except UserError as error:
        return [error.message]
    return []


def _check_gate(metric: str, threshold: Any = None, dataset_task: str = "") -> None:
    from kfp_mindspore.evaluation.metrics import check_threshold
    from kfp_mindspore.formats.dataset import TASKS

    is_number = isinstance(threshold, (int, float)) and not isinstance(threshold, bool)
    task = dataset_task if dataset_task in TASKS else ""
    check_threshold(metric, float(threshold) if is_number else None, task=task)


def _check_dataset(**known: object) -> None:
    from kfp_mindspore.data.options import DatasetOptions, parse_texts

    # A fraction that is not known yet may be small.
    known = {"validation_fraction": 0.1, "test_fraction": 0.1, **known}
    parse_texts(DatasetOptions(**_select_fields(DatasetOptions, known))).check()


def _select_fields(declaration: type[Any], known: Mapping[str, Any], *, without: str = "") -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(declaration)} - {without}
    return {name: value for name, value in known.items() if name in names}


def _check_strategy(strategy: str) -> None:
    from kfp_mindspore.evaluation.selection import check_strategy

    check_strategy(strategy)


def _check_direction(metric: str, direction: str = "") -> None:
    from kfp_mindspore.evaluation.metrics import is_maximum

    is_maximum(metric, direction)


def _check_shard(shard: str) -> None:
    from kfp_mindspore.data.split import parse_shard

    parse_shard(shard)


def _check_confidence(confidence: float) -> None:
    from kfp_mindspore.evaluation.comparison import check_confidence

    check_confidence(confidence)


def _check_job_name(job_name: str = "", namespace: str = "") -> None:
    from kfp_mindspore.msjob import build_msjob
    from kfp_mindspore.msjob.validation import validate_msjob

    validate_msjob(build_msjob(job_name or "job", command=["true"], namespace=namespace or "default"))


def _check_service_name(service_name: str, namespace: str = "") -> None:
    from kfp_mindspore.inference.service import list_service_errors

    # A step without a service has an empty name.
    if errors := list_service_errors(service_name or "none", namespace or "default"):
        raise ValidationError([re.sub(r"^name:", "service_name:", error) for error in errors])


def _check_service(**known: object) -> None:
    from kfp_mindspore.inference.pod_checks import WAITING
    from kfp_mindspore.inference.service import LANGUAGE_FORMAT, MODEL_FORMAT, SCALING, DeploymentOptions, Service

    DeploymentOptions(**_select_fields(DeploymentOptions, known))
    # The step finds the format in the bundle.
    fields = _select_fields(Service, known, without="namespace")
    if fields.get("model_format", MODEL_FORMAT) == MODEL_FORMAT:
        fields["model_format"] = LANGUAGE_FORMAT if known.get("scale_metric") == WAITING else MODEL_FORMAT
    if not fields.keys() >= set(SCALING):
        # They are checked together.
        fields = {name: value for name, value in fields.items() if name not in SCALING}
    Service("name", "model", **fields).validate()


def _check_required_name(service_name: str) -> None:
    if not service_name:
        raise ValidationError(["service_name: must be the name of a service, got an empty text"])


def _check_image(destination: str, platform: str = "linux/amd64") -> None:
    from kfp_mindspore.images.plan import check_platform
    from kfp_mindspore.images.reference import parse_repository

    check_platform(platform)
    if destination:
        parse_repository(destination)


def _check_notice(webhook: str, recipients: Sequence[str], sender: str, smtp_server: str, **known: object) -> None:
    from kfp_mindspore.runs.notice import NotifyOptions

    given = {"webhook": webhook, "recipients": recipients, "sender": sender, "smtp_server": smtp_server, **known}
    NotifyOptions(**_select_fields(NotifyOptions, given))


# Checks by the function that a step calls; a check's parameters are the component's. A dataclass of options checks
# its fields.
_CHECKS: Mapping[str, Sequence[Check]] = {
    "prepare_dataset": (_check_dataset,),
    "send_notice": (_check_notice,),
    "select_best_model": (_check_direction,),
    "select_from_pool": (_check_strategy,),
    "predict_batch": (_check_shard,),
    "compare_with_baseline": (_check_confidence, _check_service_name),
    "monitor_model": (_check_service_name,),
    "create_model": (NetworkOptions,),
    "finetune_model": (FinetuneOptions,),
    "evaluate_examples": (EvaluationOptions,),
    "index_folder": (IndexOptions,),
    "train_model": (_check_job_name, JobOptions),
    "build_step_image": (_check_image,),
    "deploy_model": (_check_required_name, _check_service_name, _check_service),
    "rollback_service": (_check_required_name, _check_service_name),
}
