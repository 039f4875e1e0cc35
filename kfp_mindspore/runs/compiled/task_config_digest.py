"""The digest over what a compiled pipeline sets on launcher tasks, part of their cache key."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from kfp_mindspore.canonical import digest_json
from kfp_mindspore.settings import TASK_CONFIG_DIGEST_VARIABLE


def add_task_config_digests(documents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a compiled pipeline's documents with a digest in each launcher step's environment.

    KFP's cache key covers image, command, environment variables and inputs (KFP 2.17): resources, volumes, tolerations,
    node selectors and affinity, which reach a job's pods as TaskConfig, are not covered. Tasks without any of these
    stay as they are.

    Args:
        documents: The pipeline's specification and, if present, the platform configuration; not modified.
    """
    changed = copy.deepcopy(list(documents))
    platforms = [document.get("platforms", {}).get("kubernetes", {}) for document in changed]
    for document in changed:
        executors = document.get("deploymentSpec", {}).get("executors", {})
        for component in document.get("components", {}).values():
            label = component.get("executorLabel", "")
            container = executors.get(label, {}).get("container")
            if container is None or not component.get("taskConfigPassthroughs"):
                continue
            settings = [platform.get("deploymentSpec", {}).get("executors", {}).get(label) for platform in platforms]
            config = [entry for entry in (container.get("resources"), *settings) if entry]
            if config:
                digest = digest_json(config)[:12]
                others = [entry for entry in container.get("env", []) if entry["name"] != TASK_CONFIG_DIGEST_VARIABLE]
                container["env"] = [*others, {"name": TASK_CONFIG_DIGEST_VARIABLE, "value": digest}]
    return changed
