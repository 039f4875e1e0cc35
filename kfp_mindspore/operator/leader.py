"""Which of several operators acts: the holder of a Lease. Who loses it ends, and is started again by Kubernetes."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import random
import time
from dataclasses import dataclass
from typing import Any

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.msjob.manifest import now
from kfp_mindspore.operator.api import Api, ApiError
from kfp_mindspore.operator.resources import LEASES

LEASE_NAME = "msjob-controller"


@dataclass
class Leader:
    """A candidate.

    The holder renews every `retry_seconds`; without success for `renew_seconds` it ends, which is before another may
    take over after `lease_seconds` in which the Lease was not renewed, by that other's own clock.

    Attributes:
        api: The client.
        namespace: Where the Lease is.
        identity: A name that no other candidate has.
        lease_seconds: After how long without renewal another takes over.
        renew_seconds: After how long without success the holder gives up.
        retry_seconds: Time between two tries.
    """

    api: Api
    namespace: str
    identity: str
    lease_seconds: float = 8.0
    renew_seconds: float = 6.0
    retry_seconds: float = 1.5
    _lease: dict[str, Any] | None = None
    _seen: float = 0.0

    async def acquire(self) -> None:
        """Wait until this candidate holds the Lease."""
        told = ""
        while not await self._try():
            holder = _read_holder(self._lease)
            if holder != told:
                logging.getLogger(__name__).info("standing by; %s leads", holder or "nobody")
                told = holder
            await asyncio.sleep(self.retry_seconds * random.uniform(0.8, 1.2))
        logging.getLogger(__name__).info("leading as %s", self.identity)

    async def hold(self) -> None:
        """Renew until cancelled.

        Raises:
            KfpMindSporeError: The Lease was lost; nothing may be done any more.
        """
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(self.retry_seconds)
            start = time.monotonic()
            if await self._try():
                # What counts for the others is when the request was sent, at the latest.
                renewed = start
            elif _read_holder(self._lease) not in ("", self.identity):
                raise KfpMindSporeError(f"the Lease {LEASE_NAME} is held by {_read_holder(self._lease)} now")
            if time.monotonic() - renewed > self.renew_seconds:
                raise KfpMindSporeError(f"the Lease {LEASE_NAME} could not be renewed for {self.renew_seconds:g} s")

    async def release(self) -> None:
        """Let another take over at once; by the time this is called nothing is being done any more."""
        if self._lease is None or _read_holder(self._lease) != self.identity:
            return
        spec = {**self._lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        with contextlib.suppress(ApiError):
            await self._put({**self._lease, "spec": spec})

    async def _try(self) -> bool:
        """Take or renew the Lease; False when another holds it, or the API server does not answer."""
        try:
            if self._lease is None or _read_holder(self._lease) != self.identity:
                await self._look()
            lease = self._lease
            if lease is None:
                body = {
                    "apiVersion": LEASES.api_version,
                    "kind": "Lease",
                    "metadata": {"name": LEASE_NAME, "namespace": self.namespace},
                    "spec": self._make_spec({}),
                }
                self._lease = await self._request("create", "POST", LEASES.locate(self.namespace), body)
                return True
            holder = _read_holder(lease)
            age = time.monotonic() - self._seen
            duration = float((lease.get("spec") or {}).get("leaseDurationSeconds") or self.lease_seconds)
            if holder not in ("", self.identity) and age < duration:
                return False
            await self._put({**lease, "spec": self._make_spec(lease.get("spec") or {})})
        except ApiError as error:
            if error.code in (403, 404):
                raise KfpMindSporeError(
                    f"cannot keep the Lease {LEASE_NAME} in namespace {self.namespace}: {error.message}",
                    hint="Create the namespace and the role (kfp-mindspore operator install --image …), or run one "
                    "operator only, with --no-leader-elect.",
                ) from error
            if error.code == 409:
                # Somebody else was quicker.
                self._lease = None
            else:
                logging.getLogger(__name__).warning("Lease %s: %s", LEASE_NAME, error.message)
            return False
        return True

    async def _look(self) -> None:
        path = LEASES.locate(self.namespace, LEASE_NAME)
        try:
            found = await self._request("get", "GET", path, None)
        except ApiError as error:
            if error.code != 404:
                raise
            self._lease = None
            return
        if self._lease is None or _read_version(found) != _read_version(self._lease):
            # Clocks of two machines differ: only one's own tells how long nothing has changed.
            self._seen = time.monotonic()
        self._lease = found

    async def _put(self, lease: dict[str, Any]) -> None:
        self._lease = await self._request("update", "PUT", LEASES.locate(self.namespace, LEASE_NAME), lease)

    async def _request(self, verb: str, method: str, path: str, body: Any) -> dict[str, Any]:
        return await self.api.request(verb, method, path, body=body, attempts=1, seconds=self.retry_seconds * 2)

    def _make_spec(self, before: dict[str, Any]) -> dict[str, Any]:
        stamp = now().astimezone(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine = before.get("holderIdentity") == self.identity
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(self.lease_seconds),
            "acquireTime": before.get("acquireTime") if mine else stamp,
            "renewTime": stamp,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (0 if mine or not before else 1),
        }


def _read_holder(lease: dict[str, Any] | None) -> str:
    return str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")


def _read_version(lease: dict[str, Any]) -> str:
    return str(lease["metadata"].get("resourceVersion"))
