"""A user of Kubeflow's SDK: lists runtimes, trains on two nodes, waits and reads logs; prints what it found as JSON.

Arguments: kubeconfig, namespace, and the variables of the trainer as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from kubeflow.common.types import KubernetesBackendConfig
from kubeflow.trainer import CustomTrainer, TrainerClient


def train(epochs: int) -> None:
    from kfp_mindspore.workloads.digits.train import main

    main(["--epochs", str(epochs)])


def call(action: Any) -> str:
    """Return the message of an action's error."""
    try:
        action()
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


kubeconfig, namespace, variables = sys.argv[1:]
client = TrainerClient(KubernetesBackendConfig(config_file=kubeconfig, namespace=namespace))
trainer = CustomTrainer(func=train, func_args={"epochs": 2}, num_nodes=2, env=json.loads(variables))
found: dict[str, Any] = {"runtimes": {item.name: item.trainer.framework for item in client.list_runtimes()}}
found["unknown"] = call(lambda: client.train(runtime="mindspore-other", trainer=trainer))
name = client.train(runtime="mindspore-distributed", trainer=trainer)
try:
    found["status"] = client.wait_for_job_status(name, timeout=500).status
except (RuntimeError, TimeoutError) as error:
    found["status"] = str(error)
for node in (0, 1):
    found[f"log-{node}"] = "\n".join(client.get_job_logs(name, step=f"node-{node}"))
alone = client.train(runtime="mindspore", trainer=trainer)
found["refused"] = call(lambda: client.wait_for_job_status(alone, timeout=200))
found["refused-log"] = "\n".join(client.get_job_logs(alone))
print(json.dumps(found))
