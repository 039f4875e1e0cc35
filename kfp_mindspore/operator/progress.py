"""Running jobs' progress, read from worker 0's last log lines at a bounded rate."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.kube.client import AsyncClient
from kfp_mindspore.kube.errors import ApiRequest, ForbiddenError
from kfp_mindspore.kube.resources import PODS
from kfp_mindspore.msjob.names import CONTAINER_NAME, RUNNING
from kfp_mindspore.msjob.progress import read_last_progress
from kfp_mindspore.operator.store import JobCache, Key

# Between two reads of one job's log. `fit` reports every 10 seconds.
_INTERVAL_SECONDS = 15.0
# Between two reads of any job's log: at most ten reads and ten status writes per second.
_PAUSE_SECONDS = 0.1
_TIMEOUT_SECONDS = 5.0
_QUERY = {"container": CONTAINER_NAME, "sinceSeconds": 30, "tailLines": 200, "limitBytes": 1 << 18}
_logger = logging.getLogger(__name__)


class ProgressReader:
    """Reads all running jobs' progress, one job after the other.

    Args:
        client: The client.
        store: The observed state, to which the progress is added.
        enqueue: Called with the job key when a job's progress has changed.
    """

    def __init__(self, client: AsyncClient, store: JobCache, enqueue: Callable[[Key], None]):
        self._client = client
        self._store = store
        self._enqueue = enqueue
        self._is_forbidden = False

    async def run(self) -> None:
        """Read until cancelled."""
        before: set[Key] = set()
        while True:
            begun = time.monotonic()
            running = set(self._store.list_in_state(RUNNING))
            # For a job that has finished since, the last report remains to be read.
            for key in sorted(running | before):
                await self.read(key)
                await asyncio.sleep(_PAUSE_SECONDS)
            before = running
            await asyncio.sleep(max(_PAUSE_SECONDS, _INTERVAL_SECONDS - (time.monotonic() - begun)))

    async def read(self, key: Key) -> None:
        """Read one job's progress; a log that cannot be read changes nothing."""
        pod = self._store.get_pod_name(key, f"{key.name}-worker-0")
        request = ApiRequest("get", "pods/log", pod, key.namespace)
        try:
            text = await asyncio.wait_for(
                self._client.request(request, "GET", PODS.get_path(key.namespace, pod, "log"), _QUERY), _TIMEOUT_SECONDS
            )
        except ForbiddenError as error:
            if not self._is_forbidden:
                _logger.warning("the progress of jobs cannot be read: %s", error.message)
            self._is_forbidden = True
            return
        except (KfpMindSporeError, asyncio.TimeoutError) as error:
            _logger.debug("no progress: %s", error, extra={"job": str(key)})
            return
        progress = read_last_progress(str(text).splitlines())
        if progress is not None and self._store.set_progress(key, progress):
            self._enqueue(key)
