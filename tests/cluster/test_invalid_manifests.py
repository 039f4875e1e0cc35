"""Jobs that are refused, in the words of the API server (which `kubectl apply` prints) and of the client before it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.msjob import KubernetesBackend, MSJobClient
from kfp_mindspore.msjob.api.names import MSJOBS
from tests.cluster.infrastructure.api_server import Api
from tests.support.kube.msjob_cases import INVALID, Invalid


def apply(api_server: Api, module_namespace: str, document: dict[str, Any]) -> tuple[int, str]:
    """Create a job as the first `kubectl apply` does, and return status and message of the response."""
    from kubernetes.client import ApiException

    with api_server.client() as client:
        try:
            response = client.call_api(
                MSJOBS.get_path(module_namespace),
                "POST",
                query_params=[("fieldManager", "kubectl-client-side-apply"), ("fieldValidation", "Strict")],
                header_params={"Accept": "application/json", "Content-Type": "application/json"},
                body=document,
                auth_settings=["BearerToken"],
                _preload_content=False,
            )[0]
            return int(response.status), ""
        except ApiException as error:
            return int(error.status), str(json.loads(error.body)["message"])


@pytest.mark.parametrize("case", INVALID, ids=lambda case: case.name)
def test_invalid_jobs_are_refused_with_message(
    api_server: Api, crd_cluster: Cluster, module_namespace: str, case: Invalid
) -> None:
    document = case.build()
    status, message = apply(api_server, module_namespace, document)
    assert status in (400, 422), f"{status} {message}"
    assert case.server in message
    # The client refuses it before it sends a request.
    client = MSJobClient(KubernetesBackend(module_namespace, kubeconfig=api_server.kubeconfig))
    with pytest.raises(ValidationError) as refused:
        client.create_job(document)
    assert refused.value.errors[0].startswith(case.client)
    # The client repeats the server's message where only the server refuses.
    with pytest.raises(ValidationError) as answered:
        crd_cluster.create(MSJOBS, document, module_namespace)
    assert case.server in str(answered.value)
    assert crd_cluster.list(MSJOBS, module_namespace) == []


def test_there_are_thirty() -> None:
    assert len({case.name for case in INVALID}) == len(INVALID) >= 30
