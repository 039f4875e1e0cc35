"""KFP's TaskConfig: what the pipeline has set on a launcher's task, for the job's pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfp_mindspore.msjob.build import PodPatch
from kfp_mindspore.settings import (
    CODE_DIGEST_VARIABLE,
    IMAGE_VARIABLE,
    JOB_OPTIONS_VARIABLE,
    TASK_CONFIG_DIGEST_VARIABLE,
)

# The parameter that `@msjob_component` adds.
PARAMETER = "task_config"
# The launcher itself's environment variables.
_LAUNCHER_VARIABLES = frozenset(
    {CODE_DIGEST_VARIABLE, IMAGE_VARIABLE, JOB_OPTIONS_VARIABLE, TASK_CONFIG_DIGEST_VARIABLE}
)
# `kubernetes` or `kubernetes-namespaced`: MLflow's client authenticates with the service account's token.
_MLFLOW_AUTH_VARIABLE = "MLFLOW_TRACKING_AUTH"
# Field in kfp.dsl.TaskConfig and PodPatch: key in the executor input.
_KEYS = {
    "affinity": "affinity",
    "tolerations": "tolerations",
    "node_selector": "nodeSelector",
    "env": "env",
    "volumes": "volumes",
    "volume_mounts": "volumeMounts",
    "resources": "resources",
}


def read_task_config(config: Any) -> PodPatch:
    """Return the additions to the job's pods that a TaskConfig holds.

    Args:
        config: A kfp.dsl.TaskConfig, the executor input's value, or None, as in a local run.
    """
    values: Mapping[str, Any] = config if isinstance(config, Mapping) else vars(config) if config is not None else {}
    fields = {name: values.get(name) or values.get(key) for name, key in _KEYS.items()}
    if fields["env"]:
        fields["env"] = [entry for entry in fields["env"] if entry["name"] not in _LAUNCHER_VARIABLES]
        fields["automount_service_account_token"] = any(
            entry["name"] == _MLFLOW_AUTH_VARIABLE and (entry.get("value") or "").startswith("kubernetes")
            for entry in fields["env"]
        )
    if fields["resources"]:
        fields["resources"] = {kind: amounts for kind, amounts in fields["resources"].items() if amounts}
    return PodPatch(**{name: value for name, value in fields.items() if value})


def is_task_config(annotation: Any) -> bool:
    """Return whether a parameter's annotation is kfp.dsl.TaskConfig."""
    return getattr(annotation, "__name__", "") == "TaskConfig"
