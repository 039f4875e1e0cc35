"""Train on two nodes by Kubeflow's SDK; print the TrainJob's name.

ARGUMENTS: kubeconfig, namespace, runtime, epochs, and the variables of the trainer.
"""

# %%
import json
import os

from kubeflow.common.types import KubernetesBackendConfig
from kubeflow.trainer import CustomTrainer, TrainerClient


def train(epochs: int) -> None:
    from kfp_mindspore.workloads.digits.train import main

    main(["--epochs", str(epochs)])


# %%
given = json.loads(os.environ["ARGUMENTS"])
client = TrainerClient(KubernetesBackendConfig(config_file=given["kubeconfig"], namespace=given["namespace"]))
trainer = CustomTrainer(func=train, func_args={"epochs": given["epochs"]}, num_nodes=2, env=given["variables"])
print(client.train(runtime=given["runtime"], trainer=trainer))
