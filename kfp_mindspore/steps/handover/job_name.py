"""Step job names."""

from __future__ import annotations

import hashlib
import re

_TASK_LENGTH = 30
_DIGEST_LENGTH = 12
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def make_job_name(root: str) -> str:
    """Return a step's job name, `<task>-<digest>`: the same for each step retry, and for no other step.

    The output root contains the run's ID and a task UUID, and Kubeflow Pipelines keeps it for retries. Its placeholders
    for both are no alternative: PIPELINE_TASK_ID is the task DAG's ID, which sibling tasks share, and neither is
    replaced in commands, environment variables or a component's defaults (KFP 2.17).

    Args:
        root: The step's output root: `<pipeline root>/<run>/<task>/<uuid>` on a cluster, `…/<task>` in a local run.
    """
    *_, before, last = ["", *root.rstrip("/").split("/")]
    task = before if _UUID.fullmatch(last) else last
    head = re.sub(r"[^a-z0-9]+", "-", task.lower()).strip("-")
    head = head if head[:1].isalpha() else f"job-{head}"
    digest = hashlib.sha256(root.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{head[:_TASK_LENGTH].strip('-')}-{digest}"
