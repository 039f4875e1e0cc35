"""What is advised when a registry does not work: another step before something was sent than after."""

from __future__ import annotations

import pytest
import requests

from kfp_mindspore.images import RegistryConfig, parse_reference
from kfp_mindspore.images.registry.errors import TransientError, explain_response
from kfp_mindspore.images.registry.session import Session

# Nothing listens there.
NOWHERE = "localhost:1/team/train"
LOOK = "Check the host's name and the network; --mirror HOST=PLACE reads from another place"
AGAIN = "Try again when the registry works."
SENT = "Try again when the registry works: what was sent before is not sent again."


@pytest.mark.parametrize(
    ("methods", "hint"),
    [(["get"], LOOK), (["head"], LOOK), (["post"], SENT), (["put"], SENT), (["post", "head"], SENT)],
)
@pytest.mark.parametrize("attempts", [1, 2])
def test_who_has_only_read_is_told_to_look_at_the_name(methods: list[str], hint: str, attempts: int) -> None:
    config = RegistryConfig(attempts=attempts, backoff_seconds=0.0)
    with Session(parse_reference(NOWHERE), config) as session:
        for method in methods:
            with pytest.raises(TransientError, match="no connection to localhost:1") as caught:
                session.ask(method, "manifests/latest", "look at")
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(("reads", "hint"), [(True, AGAIN), (False, SENT)])
def test_a_registry_that_answers_has_no_wrong_name(reads: bool, hint: str) -> None:
    response = requests.Response()
    response.status_code = 503
    error = explain_response(response, "read", "reg.io", "", reads=reads)
    assert isinstance(error, TransientError)
    assert error.hint == hint
