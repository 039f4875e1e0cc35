"""A sweep as a Katib 0.19 Experiment, whose trials are MSJobs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.kube.names import list_service_name_errors
from kfp_mindspore.msjob.api.names import (
    CONTAINER_NAME,
    FAILED,
    REPLICA_INDEX_LABEL,
    REPLICA_TYPE_LABEL,
    SUCCEEDED,
    WORKER,
)
from kfp_mindspore.msjob.build import PodPatch, build_msjob, to_env_vars
from kfp_mindspore.msjob.commands import NETWORK_PARAMETERS, build_training_command
from kfp_mindspore.settings import CHECKPOINT_VARIABLE, DATASET_VARIABLE, METRICS_FILE, OUTPUT_VARIABLE, get_image
from kfp_mindspore.sweeps.options import SweepChanges, SweepOptions
from kfp_mindspore.sweeps.space import Parameter, Space

if TYPE_CHECKING:
    from typing_extensions import Unpack

ALGORITHMS = {"tpe": "tpe", "random": "random", "grid": "grid", "gp": "bayesianoptimization", "cmaes": "cmaes"}
# Katib mounts an empty volume over the directory of the metrics file, which its collector reads too.
METRICS_DIRECTORY = "/var/log/katib"
_NAME = "trialName"
# Katib accepts 40 characters of a name, and its expression has no anchor at the end.
_LONGEST_NAME = 40
# A value is replaced inside a shell's quotes inside JSON text.
_UNSAFE = set("'\"\\")


def build_katib_experiment(
    name: str,
    template: Mapping[str, Any],
    space: Mapping[str, Any] | type[Any] | Space,
    objective: str,
    *,
    namespace: str = "default",
    output: str = "",
    image: str = "",
    claims: Sequence[tuple[str, str]] = (),
    **options: Unpack[SweepChanges],
) -> dict[str, Any]:
    """Return a Katib Experiment's manifest that searches as `sweep` does.

    Katib reads the objective from each trial's metrics.jsonl; its controller needs MSJob among its `trialResources`,
    and the right to create MSJobs (docs/sweeps.md).

    Args:
        name: Experiment name.
        template: As for `sweep`; dataset, script and output are the pods' own.
        space: The parameters, see `Space`.
        objective: The metric to improve, see `SweepOptions`.
        namespace: Experiment namespace.
        output: URI or mounted directory for checkpoints, in which each trial has its own; without one they are lost
            with the pods.
        image: The trials' image.
        claims: PersistentVolumeClaims and their mount paths in the workers.
        **options: Further fields of `SweepOptions`. Katib has no asynchronous successive halving and Hyperband for
            trials that run already: these pruners are left out, and `median` is `medianstop`.

    Raises:
        ValidationError: A name, an option or a parameter is wrong, or Katib cannot express it.
    """
    given = SweepOptions(objective=objective, **options)
    parsed = (
        space if isinstance(space, Space) else Space(space, NETWORK_PARAMETERS if template.get("network") else None)
    )
    if errors := _list_errors(name, parsed, given, get_image(image)):
        raise ValidationError(errors, subject="Katib experiment")
    trials = len(parsed.list_grid()) if given.sampler == "grid" else given.trials
    trials = min(trials, given.trials)
    settings = [{"name": "random_state", "value": str(given.seed)}] if given.sampler != "grid" else []
    experiment = {
        "objective": {"type": "maximize" if given.is_maximized else "minimize", "objectiveMetricName": objective},
        "algorithm": {"algorithmName": ALGORITHMS[given.sampler], "algorithmSettings": settings},
        "maxTrialCount": trials,
        "parallelTrialCount": min(given.parallel, trials),
        # A failed trial does not end the sweep.
        "maxFailedTrialCount": trials,
        "parameters": [_build_parameter(key, value) for key, value in parsed.parameters.items()],
        "metricsCollectorSpec": {
            "collector": {"kind": "File"},
            "source": {
                "fileSystemPath": {"path": f"{METRICS_DIRECTORY}/{METRICS_FILE}", "kind": "File", "format": "TEXT"},
                # Its JSON format has texts for numbers, and no objects such as `validation`.
                "filter": {"metricsFormat": [rf'"({re.escape(objective)})": *([-+0-9.eE]+)']},
            },
        },
        "trialTemplate": {
            "primaryContainerName": CONTAINER_NAME,
            "primaryPodLabels": {REPLICA_TYPE_LABEL: WORKER.lower(), REPLICA_INDEX_LABEL: "0"},
            "successCondition": _build_condition(SUCCEEDED),
            "failureCondition": _build_condition(FAILED),
            "trialParameters": [
                *({"name": key, "reference": key} for key in parsed.parameters),
                *([{"name": _NAME, "reference": "${trialSpec.Name}"}] if output else []),
            ],
            "trialSpec": _build_trial(template, parsed, output, image, claims, given.trial_timeout),
        },
    }
    if given.pruner == "median":
        experiment["earlyStopping"] = {"algorithmName": "medianstop"}
    return {
        "apiVersion": "kubeflow.org/v1beta1",
        "kind": "Experiment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": experiment,
    }


def _list_errors(name: str, space: Space, options: SweepOptions, image: str) -> list[str]:
    errors = list_service_name_errors("name", name, _LONGEST_NAME)
    if not image:
        errors.append("image: is required, the trials' image")
    if options.seeds > 1:
        errors.append(f"seeds: Katib trains a trial once, got {options.seeds}")
    if options.objectives:
        errors.append("objectives: Katib improves one objective")
    for key, parameter in space.parameters.items():
        if parameter.when:
            errors.append(f"{key}.when: Katib has no conditional parameters")
        for choice in parameter.choices or ():
            if not isinstance(choice, (int, float, str)) or isinstance(choice, bool):
                errors.append(f"{key}.choices: Katib has numbers and texts only, got {choice!r}")
            elif isinstance(choice, str) and (not choice or _UNSAFE & set(choice) or not choice.isprintable()):
                errors.append(f"{key}.choices: must have no quotes and backslashes for Katib, got {choice!r}")
    return errors


def _build_parameter(name: str, parameter: Parameter) -> dict[str, Any]:
    if parameter.choices is not None:
        return {
            "name": name,
            "parameterType": "categorical",
            "feasibleSpace": {"list": [str(choice) for choice in parameter.choices]},
        }
    step = (parameter.step or 1) if parameter.is_integer and not parameter.log else parameter.step
    limits = {"min": parameter.low, "max": parameter.high, "step": step}
    space = {key: str(value) for key, value in limits.items() if value is not None}
    if parameter.log:
        space["distribution"] = "logUniform"
    return {"name": name, "parameterType": "int" if parameter.is_integer else "double", "feasibleSpace": space}


def _build_condition(kind: str) -> str:
    return f'status.conditions.#(type=="{kind}")#|#(status=="True")#'


def _build_trial(
    template: Mapping[str, Any],
    space: Space,
    output: str,
    image: str,
    claims: Sequence[tuple[str, str]],
    timeout: int | None,
) -> dict[str, Any]:
    """Return a trial's MSJob, without a name; Katib names it."""
    fields = dict(template)
    shared = fields.pop("trainer_parameters", None) or {}
    chosen = {key: f"${{trialParameters.{key}}}" for key in space.parameters}
    dataset = fields.pop("dataset", None)
    command = build_training_command(
        fields.pop("network", None),
        fields.pop("network_arguments", None),
        fields.pop("script", None),
        dataset,
        METRICS_DIRECTORY,
        {**shared, **chosen},
    )
    variables = {DATASET_VARIABLE: dataset, OUTPUT_VARIABLE: METRICS_DIRECTORY}
    if output:
        variables[CHECKPOINT_VARIABLE] = f"{output.rstrip('/')}/${{trialParameters.{_NAME}}}/checkpoints"
    volumes = [
        {"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}}
        for number, (claim, _) in enumerate(claims)
    ]
    mounts = [{"name": f"claim-{number}", "mountPath": path} for number, (_, path) in enumerate(claims)]
    workers = fields.pop("num_workers", 1)
    if fields:
        raise UserError(f"template.{min(fields)}: is not exported", hint="Add it to the manifest's trialSpec.")
    job = build_msjob(
        "trial",
        # Katib joins the words of another command without quotes.
        command=["sh", "-c"],
        args=[shlex.join(command)],
        image=get_image(image),
        workers=workers,
        env=to_env_vars({key: str(value) for key, value in variables.items() if value is not None}),
        # The collector reads the metrics after the training's end.
        clean_pod_policy="None",
        active_deadline_seconds=timeout,
        pod=PodPatch(volumes=volumes, volume_mounts=mounts),
    )
    manifest = job.to_dict()
    del manifest["metadata"]
    return manifest
