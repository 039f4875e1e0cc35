"""Requests that schemathesis generates from the OpenAPI documents of kserve's own application and of the server."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from tests.fuzz.targets import Stage

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

pytestmark = pytest.mark.mindspore

# For each of some forty operations and modes, over new connections: fewer than of other bodies.
EXAMPLES = max(2, int(os.environ.get("FUZZ_EXAMPLES", "0")) // 10)


def describe_kserve() -> dict[str, Any]:
    """Return the OpenAPI document of kserve's V1 and V2 routes."""
    from fastapi import FastAPI
    from kserve.model_repository import ModelRepository
    from kserve.protocol.dataplane import DataPlane
    from kserve.protocol.model_repository_extension import ModelRepositoryExtension
    from kserve.protocol.rest.v1_endpoints import register_v1_endpoints
    from kserve.protocol.rest.v2_endpoints import register_v2_endpoints

    application, repository = FastAPI(), ModelRepository()
    plane, extension = DataPlane(repository), ModelRepositoryExtension(repository)
    register_v1_endpoints(application, plane, extension)
    register_v2_endpoints(application, plane, extension)
    return application.openapi()


def test_every_operation_of_kserves_openapi_document(stage: Stage) -> None:
    server = stage.server
    url = f"http://127.0.0.1:{server.port}"
    seen: dict[str, set[int]] = {}
    wrong: list[str] = []
    for result in schemathesis.openapi.from_dict(describe_kserve()).get_all_operations():
        operation = result.ok()
        models: list[str | None] = [None]
        # Unloading the model on request would be right.
        if "{model_name}" in operation.path and "repository" not in operation.path:
            models.append("digits")
        statuses = seen.setdefault(f"{operation.method.upper()} {operation.path}", set())
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            for model in models:
                # An operation without anything to get wrong has no negative cases.
                with contextlib.suppress(Unsatisfiable):
                    _send_cases(operation, mode, url, model, statuses, wrong)
    assert not wrong, wrong[:5]
    assert len(seen) == 14, seen
    assert {200, 400, 404} <= set.union(*seen.values()), seen
    assert server.is_alive()
    assert server.get("/v2/models/digits/ready")[0] == 200
    assert "Traceback" not in server.read_log()


def _send_cases(operation: Any, mode: Any, url: str, model: str | None, statuses: set[int], wrong: list[str]) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=EXAMPLES <= 10,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        if model is not None:
            case.path_parameters["model_name"] = model
        response = case.call(base_url=url)
        statuses.add(response.status_code)
        if response.status_code >= 500 and response.status_code not in (501, 503):
            wrong.append(f"{response.status_code} {response.text[:200]}: {case.as_curl_command()}")

    send()


def test_every_operation_of_own_openapi_document(stage: Stage) -> None:
    """Assert that each response has a documented form, and each generated request a response without a crash."""
    server = stage.server
    url = f"http://127.0.0.1:{server.port}"
    status, content = server.get("/openapi.json")
    assert status == 200
    document = json.loads(content)
    statuses: dict[str, set[int]] = {}
    for result in schemathesis.openapi.from_dict(document).get_all_operations():
        operation = result.ok()
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            with contextlib.suppress(Unsatisfiable):
                _validate_cases(operation, mode, url, statuses.setdefault(operation.path, set()))
    assert len(statuses) == len(document["paths"]) >= 5 + 5 * len(stage.targets)
    assert {200, 400} <= set.union(*statuses.values())
    assert "Traceback" not in server.read_log()


def _validate_cases(operation: Any, mode: Any, url: str, statuses: set[int]) -> None:
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=EXAMPLES <= 10,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        response = case.call(base_url=url)
        statuses.add(response.status_code)
        checks = [not_a_server_error, content_type_conformance, response_schema_conformance]
        case.validate_response(response, checks=checks)

    send()
