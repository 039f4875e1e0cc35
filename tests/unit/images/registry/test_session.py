"""Retries and error hints of registry requests."""

from __future__ import annotations

import pytest
import requests

from kfp_mindspore.images import RegistryConfig
from kfp_mindspore.images.reference import parse_reference
from kfp_mindspore.images.registry.errors import TransientError, explain_status
from kfp_mindspore.images.registry.session import RegistrySession, retry


@pytest.mark.parametrize("attempts", [1, 3])
def test_transient_errors_are_retried(attempts: int) -> None:
    calls = []

    def fail() -> None:
        calls.append(1)
        raise TransientError("no connection")

    with pytest.raises(TransientError, match="no connection") as caught:
        retry(RegistryConfig(attempts=attempts, backoff_seconds=0.0), fail)
    assert len(calls) == attempts
    assert ("tried 3 times" in caught.value.message) == (attempts == 3)


def test_unreachable_registry_hints_at_host_and_options() -> None:
    # Nothing listens on this port.
    config = RegistryConfig(attempts=1)
    with (
        RegistrySession(parse_reference("localhost:1/team/train"), config) as session,
        pytest.raises(TransientError, match="no connection to localhost:1") as caught,
    ):
        session.request("get", "manifests/latest", "read the manifest of")
    assert "--mirror HOST=LOCATION" in caught.value.hint


def test_server_error_hints_at_later_attempt() -> None:
    response = requests.Response()
    response.status_code = 503
    error = explain_status(response, "read", "reg.io", "")
    assert isinstance(error, TransientError)
    assert error.hint.startswith("Try again")
