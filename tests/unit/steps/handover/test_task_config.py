from __future__ import annotations

from typing import Any

import pytest
from kfp import dsl

from kfp_mindspore.msjob.build import PodPatch
from kfp_mindspore.settings import IMAGE_VARIABLE, JOB_OPTIONS_VARIABLE
from kfp_mindspore.steps.handover.task_config import read_task_config

SECRET = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s3", "key": "key"}}}
AUTH = {"name": "MLFLOW_TRACKING_AUTH", "value": "kubernetes-namespaced"}
VOLUME = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
MOUNT = {"name": "data", "mountPath": "/data"}
# As the driver of KFP 2.17 writes it into the executor input.
EXECUTOR_INPUT = {
    "affinity": {"nodeAffinity": {}},
    "tolerations": [{"key": "npu"}],
    "nodeSelector": {"zone": "a"},
    "env": [{"name": JOB_OPTIONS_VARIABLE, "value": "{}"}, {"name": IMAGE_VARIABLE, "value": "x"}, SECRET],
    "volumes": [VOLUME],
    "volumeMounts": [MOUNT],
    "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {}},
}
PATCH = PodPatch(
    affinity={"nodeAffinity": {}},
    tolerations=[{"key": "npu"}],
    node_selector={"zone": "a"},
    env=[SECRET],
    volumes=[VOLUME],
    volume_mounts=[MOUNT],
    resources={"limits": {"nvidia.com/gpu": "1"}},
)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, PodPatch()),
        (dsl.TaskConfig(), PodPatch()),
        ({"resources": {}}, PodPatch()),
        ({"env": [AUTH]}, PodPatch(env=[AUTH], automount_service_account_token=True)),
        (EXECUTOR_INPUT, PATCH),
        (
            dsl.TaskConfig(
                **{
                    {"nodeSelector": "node_selector", "volumeMounts": "volume_mounts"}.get(key, key): value
                    for key, value in EXECUTOR_INPUT.items()
                }
            ),
            PATCH,
        ),
    ],
)
def test_task_config_becomes_additions_to_pods(config: Any, expected: PodPatch) -> None:
    assert read_task_config(config) == expected
