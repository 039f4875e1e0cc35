"""A notebook with Kubeflow's SDK: lists runtimes, trains on two nodes, makes mistakes; prints the results as JSON.

ARGUMENTS: kubeconfig, namespace, and the variables of the trainer.
"""

# %%
import json
import os
from typing import Any

from kubeflow.common.types import KubernetesBackendConfig
from kubeflow.trainer import (
    BuiltinTrainer,
    CustomTrainer,
    HuggingFaceDatasetInitializer,
    Initializer,
    TorchTuneConfig,
    TrainerClient,
)

given = json.loads(os.environ["ARGUMENTS"])
client = TrainerClient(KubernetesBackendConfig(config_file=given["kubeconfig"], namespace=given["namespace"]))


# %%
def train(epochs: int) -> None:
    from kfp_mindspore.workloads.digits.train import main

    main(["--epochs", str(epochs)])


# %%
def call(action: Any) -> str:
    """Return the message of an action's error, with its cause."""
    try:
        action()
    except (RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}; {error.__cause__}"
    return ""


factor = 2


def use_other_cell() -> None:
    print(factor)


def start(runtime: str, func: Any, **options: Any) -> str:
    return client.train(runtime=runtime, trainer=CustomTrainer(func=func, **options))


def list_mistakes() -> dict[str, str]:
    """Return the message of each call that `train` refuses."""
    builtin = BuiltinTrainer(config=TorchTuneConfig())
    dataset = Initializer(dataset=HuggingFaceDatasetInitializer(storage_uri="hf://a/b"))
    return {
        "unknown": call(lambda: start("mindspore-other", train)),
        "builtin": call(lambda: client.train(runtime="mindspore-distributed", trainer=builtin)),
        "builtin-alone": call(lambda: client.train(runtime="mindspore", trainer=builtin)),
        "nodes": call(lambda: start("mindspore", train, num_nodes=2)),
        "negative": call(lambda: start("mindspore", train, num_nodes=-1)),
        "initializer": call(lambda: client.train("mindspore", initializer=dataset, trainer=CustomTrainer(func=train))),
        "object": call(lambda: start("mindspore", print)),
    }


# %%
mistakes = list_mistakes()
found: dict[str, Any] = {"runtimes": {item.name: item.trainer.framework for item in client.list_runtimes()}}
failing = {"lambda": start("mindspore", lambda: None), "other-cell": start("mindspore", use_other_cell)}
for what, name in failing.items():
    mistakes[what] = call(lambda name=name: client.wait_for_job_status(name, timeout=200))
    mistakes[f"{what}-log"] = "\n".join(client.get_job_logs(name))
trainer = CustomTrainer(func=train, func_args={"epochs": 2}, num_nodes=2, env=given["variables"])
name = client.train(runtime="mindspore-distributed", trainer=trainer)
status = call(lambda: client.wait_for_job_status(name, timeout=500))
logs = ["\n".join(client.get_job_logs(name, step=f"node-{node}")) for node in (0, 1)]

# %%
print(json.dumps({**found, "mistakes": mistakes, "name": name, "error": status, "logs": logs}))
