"""The exit task that ends a run's jobs."""

from __future__ import annotations

import contextlib

from kfp_mindspore.errors import NotFoundError


def stop_jobs(namespace: str = "") -> int:
    """Request deletion for the unfinished MSJobs in this step's run; none outside a cluster.

    Args:
        namespace: Job namespace; empty for the step's.

    Returns:
        How many jobs it requested to delete.
    """
    from kfp_mindspore.msjob import MSJobClient
    from kfp_mindspore.msjob.backends.kubernetes import KubernetesBackend
    from kfp_mindspore.steps.handover.step_pod import read_step_pod

    client = MSJobClient(namespace=namespace or None)
    if not isinstance(client.backend, KubernetesBackend):
        print("Jobs on this machine end with their run: nothing to stop")
        return 0
    pod = read_step_pod(client.backend.cluster)
    stopped = 0
    for job in client.list_jobs() if pod is not None else []:
        if pod is None or not pod.has_run(job.metadata) or (job.status is not None and job.status.is_finished):
            continue
        with contextlib.suppress(NotFoundError):
            client.backend.cancel(job)
            stopped += 1
            print(f"job {job.name}: unfinished at the end of its run, deleted", flush=True)
    return stopped
