"""A namespace of KServe as an environment of the conformance cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.inference import InferenceClient, KServeBackend
from kfp_mindspore.inference.rest import predict_v1
from kfp_mindspore.inference.smoke import read_example_requests
from tests.support.controllers.kserve_cluster import KServe, resolve_services
from tests.support.serving.serving_cases import FIRST, NAME, SECOND, ServingEnvironment

# A server starts in seconds, but so do all pods of a machine with two busy cores at once.
READY_SECONDS = 300.0


class KServeEnvironment(ServingEnvironment):
    """A namespace of KServe with a claim of bundles.

    Args:
        kserve: KServe.
        namespace: The namespace.
        bundles: Bundles by model name.
    """

    wait_seconds = READY_SECONDS
    failure = r"pod digits-(canary-)?predictor-\S+: container kserve-container ended with exit code 2"

    def __init__(self, kserve: KServe, namespace: str, bundles: dict[str, Path]) -> None:
        self.kserve = kserve
        self.client = InferenceClient(KServeBackend(kubeconfig=kserve.cluster.kubeconfig), namespace)
        self.bundles = {name: bundles[name] for name in (FIRST, SECOND)}
        self.store = "pvc://models"
        kserve.make_models(namespace, "models", bundles)

    def locate(self, model: str) -> str:
        return f"{self.store}/{model}"

    def identify(self, url: str) -> str:
        with resolve_services(self.kserve.cluster):
            (prediction,) = predict_v1(url, NAME, [self.read_sample()[0].tolist()])
        return self.recognise(prediction["output"])

    def read_sample(self) -> np.ndarray[Any, Any]:
        """Return one raw image, the same of both models."""
        (images,) = read_example_requests(ModelBundle.open(self.bundles[FIRST])).inputs.values()
        return images[:1]

    def recognise(self, prediction: Any) -> str:
        """Return the model whose verified output for the sample is a prediction."""
        expected = {name: read_outputs(bundle)[0] for name, bundle in self.bundles.items()}
        (model,) = [name for name, values in expected.items() if np.allclose(prediction, values, atol=1e-4)]
        return model


def read_outputs(bundle: Path) -> np.ndarray[Any, Any]:
    return read_example_requests(ModelBundle.open(bundle)).outputs["output"]
