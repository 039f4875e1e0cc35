from __future__ import annotations

import copy
from typing import Any

import pytest


@pytest.fixture
def document() -> dict[str, Any]:
    """Return the wire form of a valid job that uses every field; the test may change it."""
    container = {
        "name": "mindspore",
        "image": "example.com/train:1",
        "command": ["python", "train.py"],
        "args": ["--epochs", "2"],
        "env": [{"name": "SEED", "value": "42"}, {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
        "ports": [{"name": "msjob-port", "containerPort": 2222}],
        "workingDir": "src",
    }
    sidecar = {"name": "logs", "image": "example.com/logs:1"}
    return {
        "apiVersion": "mindspore.gitee.com/v1",
        "kind": "MSJob",
        "metadata": {"name": "digits", "namespace": "team", "labels": {"app": "digits"}, "annotations": {"a": "b"}},
        "spec": {
            "msReplicaSpecs": {
                "Scheduler": {"template": {"spec": {"containers": [copy.deepcopy(container)]}}},
                "Worker": {
                    "replicas": 2,
                    "restartPolicy": "OnFailure",
                    "template": {
                        "metadata": {"labels": {"tier": "training"}},
                        "spec": {"containers": [container, sidecar], "terminationGracePeriodSeconds": 10},
                    },
                },
            },
            "runPolicy": {
                "activeDeadlineSeconds": 600,
                "backoffLimit": 0,
                "cleanPodPolicy": "All",
                "managedBy": "kueue.x-k8s.io/multikueue",
                "schedulingPolicy": {
                    "minAvailable": 2,
                    "minResources": {"cpu": "2"},
                    "priorityClass": "high",
                    "queue": "training",
                    "scheduleTimeoutSeconds": 0,
                },
                "suspend": False,
                "ttlSecondsAfterFinished": 0,
            },
            "successPolicy": "AllWorkers",
            "enableDynamicWorker": False,
        },
    }
