"""Jobs that are refused, in the words of the API server (which `kubectl apply` prints) and of the client before it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.msjob import KubernetesBackend, MSJobClient
from kfp_mindspore.msjob.names import MSJOBS
from tests.cluster.infrastructure.api_server import Api
from tests.support.msjob_cases import INVALID, Invalid
from tests.support.operators import install_definition


@pytest.fixture(scope="module")
def cluster(api_server: Api) -> Cluster:
    install_definition(api_server.kubeconfig)
    return Cluster(api_server.kubeconfig)


@pytest.fixture(scope="module")
def namespace(api_server: Api) -> Iterator[str]:
    with api_server.make_namespace() as name:
        yield name


def apply(api_server: Api, namespace: str, document: dict[str, Any]) -> tuple[int, str]:
    """Create a job as the first `kubectl apply` does, and return status and message of the response."""
    from kubernetes.client import ApiException

    with api_server.client() as client:
        try:
            response = client.call_api(
                MSJOBS.get_path(namespace),
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
    api_server: Api, cluster: Cluster, namespace: str, case: Invalid
) -> None:
    document = case.build()
    status, message = apply(api_server, namespace, document)
    assert status in (400, 422), f"{status} {message}"
    assert case.server in message
    # The client refuses it before it sends a request.
    client = MSJobClient(KubernetesBackend(namespace, kubeconfig=api_server.kubeconfig))
    with pytest.raises(ValidationError) as refused:
        client.create_job(document)
    assert refused.value.errors[0].startswith(case.client)
    # The client repeats the server's message where only the server refuses.
    with pytest.raises(ValidationError) as answered:
        cluster.create(MSJOBS, document, namespace)
    assert case.server in str(answered.value)
    assert cluster.list(MSJOBS, namespace) == []


def test_there_are_thirty() -> None:
    assert len({case.name for case in INVALID}) == len(INVALID) >= 30
