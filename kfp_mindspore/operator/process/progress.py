"""Jobs' progress, read from worker 0's last log lines: at a bounded rate while they run, and once at their end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.kube.client import AsyncClient
from kfp_mindspore.kube.errors import ApiRequest, ForbiddenError
from kfp_mindspore.kube.resources import PODS
from kfp_mindspore.msjob.api.names import CONTAINER_NAME, RUNNING
from kfp_mindspore.msjob.progress import read_last_progress
from kfp_mindspore.operator.process.store import JobCache, JobKey

# Between two reads of one job's log. `fit` reports every 10 seconds.
_INTERVAL_SECONDS = 15.0
# Between two reads of any job's log: at most ten reads and ten status writes per second.
_PAUSE_SECONDS = 0.1
_TIMEOUT_SECONDS = 5.0
_QUERY = {"container": CONTAINER_NAME, "tailLines": 200, "limitBytes": 1 << 18}
_SINCE_SECONDS = 30
_logger = logging.getLogger(__name__)


class ProgressReader:
    """Reads jobs' progress.

    Args:
        client: The client.
        store: The observed state, to which the progress is added.
        enqueue: Called with the job key when a running job's progress has changed.
    """

    def __init__(self, client: AsyncClient, store: JobCache, enqueue: Callable[[JobKey], None]):
        self._client = client
        self._store = store
        self._enqueue = enqueue
        self._is_forbidden = False

    async def run(self) -> None:
        """Read running jobs' progress until cancelled."""
        while True:
            begun = time.monotonic()
            for key in sorted(self._store.list_in_state(RUNNING)):
                if await self.read(key, since_seconds=_SINCE_SECONDS):
                    self._enqueue(key)
                await asyncio.sleep(_PAUSE_SECONDS)
            await asyncio.sleep(max(_PAUSE_SECONDS, _INTERVAL_SECONDS - (time.monotonic() - begun)))

    async def read(self, key: JobKey, *, since_seconds: int | None = None) -> bool:
        """Store one job's progress, and return whether it has changed; a log that cannot be read changes nothing.

        Args:
            key: The job.
            since_seconds: Maximum age of lines; None for any.
        """
        pod = self._store.get_pod_name(key, f"{key.name}-worker-0")
        request = ApiRequest("get", "pods/log", pod, key.namespace)
        query = _QUERY if since_seconds is None else {**_QUERY, "sinceSeconds": since_seconds}
        try:
            text = await asyncio.wait_for(
                self._client.request(request, "GET", PODS.get_path(key.namespace, pod, "log"), query), _TIMEOUT_SECONDS
            )
        except ForbiddenError as error:
            if not self._is_forbidden:
                _logger.warning("the progress of jobs cannot be read: %s", error.message)
            self._is_forbidden = True
            return False
        except (KfpMindSporeError, asyncio.TimeoutError) as error:
            _logger.debug("no progress: %s", error, extra={"job": str(key)})
            return False
        progress = read_last_progress(str(text).splitlines())
        return progress is not None and self._store.set_progress(key, progress)
