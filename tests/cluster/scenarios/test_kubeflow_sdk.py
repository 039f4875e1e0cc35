"""Kubeflow's SDK and Trainer with the runtimes of `kfp-mindspore trainer runtime`, beside an MSJob of the same work."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from kfp_mindspore.data import load_dataset
from kfp_mindspore.formats.checkpoint import Checkpoint
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.msjob import KubernetesBackend, MSJobClient, build_msjob
from kfp_mindspore.msjob.build import JobOptions
from kfp_mindspore.msjob.training_runtime import DISTRIBUTED, SINGLE, build_training_runtime
from kfp_mindspore.settings import DATASET_VARIABLE, OUTPUT_VARIABLE
from tests.cluster.infrastructure.cluster import Cluster as NodeCluster
from tests.cluster.infrastructure.images import PYTHON
from tests.cluster.infrastructure.packages import PodPackages
from tests.support.controllers.trainer_cluster import run_trainer
from tests.support.kube.operators import OperatorProcess

SDK_VARIABLE = "KFP_MINDSPORE_KUBEFLOW_SDK"
SCRIPT = Path(__file__).parents[1] / "kubeflow_sdk" / "sdk_script.py"


def read_weights(output: Path) -> dict[str, np.ndarray]:
    from mindspore import load_checkpoint

    parameters = load_checkpoint(str(Checkpoint.open(output / "checkpoint").network_file))
    return {name: parameter.asnumpy() for name, parameter in parameters.items()}


@pytest.mark.mindspore
def test_sdk_trains_on_two_nodes_what_msjob_does(
    own_cluster: NodeCluster, shared_operator: tuple[str, OperatorProcess], pod_packages: PodPackages
) -> None:
    if not (python := os.environ.get(SDK_VARIABLE)):
        pytest.skip(f"{SDK_VARIABLE} names no Python with Kubeflow's SDK: run `make test-kubeflow`")
    namespace, _ = shared_operator
    api = Cluster(own_cluster.kubeconfig)
    volume = own_cluster.make_volume(namespace)
    load_dataset("digits", volume / "data")
    data = {"name": "data", "hostPath": {"path": str(volume), "type": "Directory"}}
    mount = {"name": "data", "mountPath": "/mnt"}
    with run_trainer(own_cluster):
        for name in (DISTRIBUTED, SINGLE):
            runtime = build_training_runtime(name, JobOptions(image=PYTHON))
            template = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
            pod = template["spec"] = pod_packages.add_to(template["spec"])
            pod["volumes"].append(data)
            (container,) = pod["containers"]
            # The packages set HOME, as the runtime does.
            container["env"] = list({item["name"]: item for item in container["env"]}.values())
            container["volumeMounts"].append(mount)
            api.apply(runtime)
        variables = json.dumps({DATASET_VARIABLE: "/mnt/data", OUTPUT_VARIABLE: "/mnt/trainjob"})
        command = [python, str(SCRIPT), str(own_cluster.kubeconfig), namespace, variables]
        done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
    assert found["runtimes"] == {DISTRIBUTED: "mindspore", SINGLE: "mindspore"}
    assert "Failed to get Runtime: mindspore-other" in found["unknown"]
    assert found["status"] == "Complete", found
    assert "epoch" in found["log-0"]
    assert "is Failed" in found["refused"]
    assert "the runtime sets MS_WORKER_NUM=1: it is for one node" in found["refused-log"]

    env = {DATASET_VARIABLE: "/mnt/data", OUTPUT_VARIABLE: "/mnt/msjob"}
    words = ["python", "-m", "kfp_mindspore.workloads.digits.train", "--epochs", "2"]
    job = build_msjob("digits", command=words, image=PYTHON, workers=2, namespace=namespace, env=env)
    template = job.ms_replica_specs["Worker"].template
    template["spec"] = pod_packages.add_to(template["spec"])
    template["spec"]["volumes"].append(data)
    template["spec"]["containers"][0]["volumeMounts"].append(mount)
    client = MSJobClient(KubernetesBackend(namespace, kubeconfig=own_cluster.kubeconfig))
    client.create_job(job)
    client.wait_for_job_conditions("digits", timeout=500)
    own, other = read_weights(volume / "trainjob"), read_weights(volume / "msjob")
    assert own.keys() == other.keys()
    assert max(float(np.abs(own[name] - other[name]).max()) for name in own) < 1e-6
