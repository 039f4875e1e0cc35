"""Leader election by a Lease: a process that loses it ends, and is restarted by the Deployment."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import random
import time
from dataclasses import dataclass
from typing import Any

from kfp_mindspore.errors import AlreadyExistsError, KfpMindSporeError, NotFoundError
from kfp_mindspore.kube.client import AsyncClient
from kfp_mindspore.kube.errors import ConflictError, ForbiddenError
from kfp_mindspore.kube.resources import LEASES
from kfp_mindspore.msjob.api.manifest import now

LEASE_NAME = "msjob-controller"


@dataclass
class Leader:
    """A candidate.

    The leader renews the Lease every `retry_seconds`; after `renew_seconds` without success it ends. Another candidate
    takes over once the Lease was not renewed for `lease_seconds`, by that candidate's clock, which is later.

    Attributes:
        client: The client.
        namespace: The Lease's namespace.
        identity: The candidate's unique name.
        lease_seconds: Seconds without renewal after which another candidate takes over.
        renew_seconds: Seconds without a successful renewal after which the leader ends.
        retry_seconds: Seconds between two tries.
    """

    client: AsyncClient
    namespace: str
    identity: str
    lease_seconds: float = 8.0
    renew_seconds: float = 6.0
    retry_seconds: float = 1.5
    _lease: dict[str, Any] | None = None
    _seen: float = 0.0

    async def acquire(self) -> None:
        """Wait until this candidate holds the Lease."""
        logged = ""
        while not await self._try():
            holder = _read_holder(self._lease)
            if holder != logged:
                logging.getLogger(__name__).info(
                    "standby: the Lease %s is held by %s", LEASE_NAME, holder or "no replica"
                )
                logged = holder
            await asyncio.sleep(self.retry_seconds * random.uniform(0.8, 1.2))
        logging.getLogger(__name__).info("acquired the Lease as %s", self.identity)

    async def hold(self) -> None:
        """Renew until cancelled.

        Raises:
            KfpMindSporeError: The Lease was lost; all work must end.
        """
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(self.retry_seconds)
            start = time.monotonic()
            if await self._try():
                # Other candidates may have seen the renewal as early as when it was sent.
                renewed = start
            elif _read_holder(self._lease) not in ("", self.identity):
                raise KfpMindSporeError(f"the Lease {LEASE_NAME} is held by {_read_holder(self._lease)} now")
            if time.monotonic() - renewed > self.renew_seconds:
                raise KfpMindSporeError(f"the Lease {LEASE_NAME} could not be renewed for {self.renew_seconds:g} s")

    async def release(self) -> None:
        """Release the Lease, so that another candidate takes over at once; all work must have ended before."""
        if self._lease is None or _read_holder(self._lease) != self.identity:
            return
        spec = {**self._lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        with contextlib.suppress(KfpMindSporeError, asyncio.TimeoutError):
            await asyncio.wait_for(self.client.update(LEASES, {**self._lease, "spec": spec}), self.retry_seconds * 2)

    async def _try(self) -> bool:
        """Acquire or renew the Lease; False when another holds it, or the API server does not respond in time."""
        try:
            return await asyncio.wait_for(self._acquire_or_renew(), self.retry_seconds * 2)
        except (ForbiddenError, NotFoundError) as error:
            raise KfpMindSporeError(
                f"cannot keep the Lease {LEASE_NAME} in namespace {self.namespace}: {error.message}",
                hint="Create the namespace and the role (kfp-mindspore operator install --image …), or run one "
                "operator only, with --no-leader-elect.",
            ) from error
        except (AlreadyExistsError, ConflictError):
            # Another candidate was first.
            self._lease = None
        except (KfpMindSporeError, asyncio.TimeoutError) as error:
            logging.getLogger(__name__).warning("Lease %s: %s", LEASE_NAME, error or "no response")
        return False

    async def _acquire_or_renew(self) -> bool:
        if self._lease is None or _read_holder(self._lease) != self.identity:
            await self._refresh()
        lease = self._lease
        if lease is None:
            body = {
                "apiVersion": LEASES.api_version,
                "kind": "Lease",
                "metadata": {"name": LEASE_NAME, "namespace": self.namespace},
                "spec": self._make_spec({}),
            }
            self._lease = await self.client.create(LEASES, body, self.namespace)
            return True
        holder = _read_holder(lease)
        age = time.monotonic() - self._seen
        duration = float((lease.get("spec") or {}).get("leaseDurationSeconds") or self.lease_seconds)
        if holder not in ("", self.identity) and age < duration:
            return False
        self._lease = await self.client.update(LEASES, {**lease, "spec": self._make_spec(lease.get("spec") or {})})
        return True

    async def _refresh(self) -> None:
        try:
            found = await self.client.get(LEASES, LEASE_NAME, self.namespace)
        except NotFoundError:
            self._lease = None
            return
        if self._lease is None or _read_version(found) != _read_version(self._lease):
            # Expiry is measured by this machine's clock only: two machines' clocks differ.
            self._seen = time.monotonic()
        self._lease = found

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
