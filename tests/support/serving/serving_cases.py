"""Conformance of serving backends: the same cases for this machine, a simulated KServe and KServe itself.

@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_conformance(case, environment): case(environment)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kfp_mindspore.errors import NotFoundError, ProcessFailedError, UserError, ValidationError
from kfp_mindspore.inference import InferenceClient, Service
from kfp_mindspore.inference.service import ServiceState, ServiceStatus

NAME = "digits"
FIRST, SECOND = "first", "second"


class ServingEnvironment(ABC):
    """A backend with two models and one that its server cannot load.

    Attributes:
        client: Client of the backend; its namespace is the test's.
        wait_seconds: Timeout of a deployment.
        failure: Pattern of the error of a server that cannot load its model.
    """

    client: InferenceClient
    wait_seconds: float = 120
    failure: str

    @abstractmethod
    def locate(self, model: str) -> str:
        """Return directory or URI of the model `first`, `second` or `broken`."""

    @abstractmethod
    def identify(self, url: str) -> str:
        """Send a request for the model `digits` to an address, and return which model responds: `first` or `second`."""

    def deploy(self, model: str, **options: Any) -> ServiceStatus:
        """Deploy a model as the service."""
        canary = options.pop("canary", 0)
        service = Service(NAME, self.locate(model), namespace=self.client.namespace, **options)
        return self.client.deploy(service, wait_seconds=self.wait_seconds, canary=canary)


def serves_first_version(world: ServingEnvironment) -> None:
    status = world.deploy(FIRST, digest="sha256:1", run="run-1")
    assert (status.name, status.state, status.version) == (NAME, ServiceState.READY, 1)
    assert (status.model, status.digest, status.run) == (world.locate(FIRST), "sha256:1", "run-1")
    assert (status.canary, status.previous) == (None, "")
    assert world.identify(status.url) == FIRST
    assert [found.name for found in world.client.list()] == [NAME]


def new_version_replaces_the_old_one(world: ServingEnvironment) -> None:
    world.deploy(FIRST)
    status = world.deploy(SECOND)
    assert (status.version, status.model, status.previous) == (2, world.locate(SECOND), world.locate(FIRST))
    assert world.identify(status.url) == SECOND


def equal_bundle_elsewhere_starts_no_rollout(world: ServingEnvironment) -> None:
    world.deploy(FIRST, digest="sha256:1", run="run-1")
    for options in ({"run": "run-2"}, {"canary": 10}):
        status = world.deploy(SECOND, digest="sha256:1", **options)
        assert (status.version, status.model, status.canary) == (1, world.locate(FIRST), None)
    assert world.identify(status.url) == FIRST
    status = world.deploy(SECOND, digest="sha256:1", pod_labels={"team": "a"})
    assert (status.version, status.model) == (2, world.locate(SECOND))
    world.client.stop(NAME)
    status = world.deploy(FIRST, digest="sha256:1", pod_labels={"team": "a"})
    assert (status.version, status.model, status.state) == (3, world.locate(FIRST), ServiceState.READY)


def update_keeps_model_and_other_options(world: ServingEnvironment) -> None:
    world.deploy(FIRST, digest="sha256:1", pod_labels={"team": "a"})
    status = world.client.update(NAME, {"env": {"OMP_NUM_THREADS": "1"}}, world.wait_seconds)
    assert (status.version, status.model, status.digest) == (2, world.locate(FIRST), "sha256:1")
    assert world.identify(status.url) == FIRST
    # The same as a deployment with all of these options.
    options = {"digest": "sha256:1", "pod_labels": {"team": "a"}, "env": {"OMP_NUM_THREADS": "1"}}
    assert world.deploy(FIRST, **options).version == 2
    world.deploy(SECOND, canary=10)
    with pytest.raises(UserError, match="has a canary"):
        world.client.update(NAME, {"env": {}})


def failing_first_version_leaves_nothing(world: ServingEnvironment) -> None:
    with pytest.raises(ProcessFailedError, match=world.failure) as caught:
        world.deploy("broken")
    assert caught.value.log
    assert world.client.list() == []
    with pytest.raises(NotFoundError):
        world.client.get(NAME)


def failing_new_version_leaves_the_old_one_serving(world: ServingEnvironment) -> None:
    world.deploy(FIRST)
    with pytest.raises(ProcessFailedError, match=world.failure) as caught:
        world.deploy("broken")
    assert caught.value.log
    status = world.client.wait_ready(NAME, timeout=world.wait_seconds)
    assert (status.version, status.model) == (1, world.locate(FIRST))
    assert world.identify(status.url) == FIRST


def rollback_restores_the_version_before(world: ServingEnvironment) -> None:
    world.deploy(FIRST)
    world.deploy(SECOND)
    status = world.client.rollback(NAME, world.wait_seconds)
    assert (status.model, status.version, status.previous) == (world.locate(FIRST), 3, "")
    assert world.identify(status.url) == FIRST
    with pytest.raises(UserError, match="has neither a canary nor a version before"):
        world.client.rollback(NAME)


def canary_gets_its_share_of_the_requests(world: ServingEnvironment) -> None:
    stable = world.deploy(FIRST)
    status = world.deploy(SECOND, canary=30)
    canary = status.canary
    assert canary is not None
    assert (status.version, status.model, canary.model) == (1, stable.model, world.locate(SECOND))
    assert (canary.percent, canary.state) == (30, ServiceState.READY)
    assert world.identify(status.url) == FIRST
    assert world.identify(canary.url) == SECOND
    # 30 % of 200 requests: 60, more than seven standard deviations from both limits.
    assert 15 < Counter(world.identify(canary.traffic_url) for _ in range(200))[SECOND] < 110
    assert [found.name for found in world.client.list()] == [NAME]
    with pytest.raises(UserError, match="has a canary"):
        world.deploy(SECOND)


def promoted_canary_is_the_next_version(world: ServingEnvironment) -> None:
    world.deploy(FIRST)
    world.deploy(SECOND, canary=10, digest="sha256:2")
    status = world.client.promote(NAME, world.wait_seconds)
    assert (status.version, status.model, status.digest) == (2, world.locate(SECOND), "sha256:2")
    assert (status.canary, status.previous) == (None, world.locate(FIRST))
    assert world.identify(status.url) == SECOND
    with pytest.raises(UserError, match="has no canary"):
        world.client.promote(NAME)


def rollback_removes_the_canary(world: ServingEnvironment) -> None:
    stable = world.deploy(FIRST)
    world.deploy(SECOND, canary=10)
    status = world.client.rollback(NAME, world.wait_seconds)
    assert (status.version, status.url, status.canary) == (stable.version, stable.url, None)
    assert world.identify(status.url) == FIRST


def failing_canary_leaves_the_service_alone(world: ServingEnvironment) -> None:
    stable = world.deploy(FIRST)
    with pytest.raises(ProcessFailedError, match=world.failure):
        world.deploy("broken", canary=10)
    status = world.client.get(NAME)
    assert (status.version, status.url, status.canary) == (stable.version, stable.url, None)
    assert world.identify(status.url) == FIRST


def canary_can_be_replaced(world: ServingEnvironment) -> None:
    world.deploy(FIRST)
    world.deploy(FIRST, canary=10, digest="sha256:2")
    canary = world.deploy(SECOND, canary=20).canary
    assert canary is not None
    assert (canary.percent, canary.model) == (20, world.locate(SECOND))
    assert world.identify(canary.url) == SECOND


def first_version_is_no_canary(world: ServingEnvironment) -> None:
    status = world.deploy(FIRST, canary=10)
    assert (status.version, status.canary) == (1, None)


def stopped_service_is_deployed_again(world: ServingEnvironment) -> None:
    world.deploy(FIRST)
    assert world.client.stop(NAME).state is ServiceState.STOPPED
    assert world.client.get(NAME).state is ServiceState.STOPPED
    status = world.deploy(SECOND)
    assert (status.version, status.state) == (2, ServiceState.READY)


def delete_removes_the_canary_too(world: ServingEnvironment) -> None:
    world.deploy(FIRST)
    world.deploy(SECOND, canary=10)
    world.client.delete(NAME)
    assert world.client.list() == []
    for call in (world.client.get, world.client.delete, world.client.stop, world.client.promote, world.client.rollback):
        with pytest.raises(NotFoundError, match=f"service {NAME} does not exist in namespace"):
            call(NAME)
    assert world.deploy(SECOND).canary is None


def invalid_percentage_is_refused(world: ServingEnvironment) -> None:
    with pytest.raises(ValidationError, match="canary: must be an integer ≥ 0 and ≤ 99"):
        world.deploy(FIRST, canary=100)
    assert world.client.list() == []


CASES: tuple[Callable[[ServingEnvironment], None], ...] = (
    serves_first_version,
    new_version_replaces_the_old_one,
    equal_bundle_elsewhere_starts_no_rollout,
    update_keeps_model_and_other_options,
    failing_first_version_leaves_nothing,
    failing_new_version_leaves_the_old_one_serving,
    rollback_restores_the_version_before,
    canary_gets_its_share_of_the_requests,
    promoted_canary_is_the_next_version,
    rollback_removes_the_canary,
    failing_canary_leaves_the_service_alone,
    canary_can_be_replaced,
    first_version_is_no_canary,
    stopped_service_is_deployed_again,
    delete_removes_the_canary_too,
    invalid_percentage_is_refused,
)
