"""Who asks an API server for what: requests counted from its audit log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
# What a job consists of, and what tells people of it.
PARTS = frozenset({"pods", "services", "events"})
_POLICY = """apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
"""


def write_policy(directory: Path) -> tuple[list[str], Path]:
    """Write a policy that notes every request; return the API server's flags, and where its log goes."""
    policy, log = directory / "audit-policy.yaml", directory / "audit.log"
    policy.write_text(_POLICY)
    return [f"--audit-policy-file={policy}", f"--audit-log-path={log}", "--audit-log-maxsize=0"], log


def count_requests(lines: Iterable[str], agent: str = "") -> Counter[str]:
    """Count requests by verb and resource, such as `create pods` and `patch msjobs/status`.

    Args:
        lines: Of an audit log. A last line that is not whole yet is left out.
        agent: Only of clients whose User-Agent begins so.
    """
    found: Counter[str] = Counter()
    for line in lines:
        if not line.endswith("\n"):
            continue
        event = json.loads(line)
        # A watch is noted when it begins, and again when it ends.
        if event["stage"] not in ("ResponseComplete", "Panic") and event["verb"] != "watch":
            continue
        if event["verb"] == "watch" and event["stage"] != "ResponseStarted":
            continue
        if not str(event.get("userAgent") or "").startswith(agent):
            continue
        reference = event.get("objectRef") or {}
        words = (reference.get("resource") or event["requestURI"].partition("?")[0], reference.get("subresource"))
        found[f"{event['verb']} {'/'.join(word for word in words if word)}"] += 1
    return found


def count_own_writes(requests: Counter[str]) -> int:
    """Return how many requests write something else than a job's pods, Service and events."""
    return sum(count for request, count in requests.items() if is_write(request) and split(request)[1] not in PARTS)


def count_polls(requests: Counter[str]) -> int:
    """Return how many requests are no watch."""
    return sum(count for request, count in requests.items() if split(request)[0] != "watch")


def is_write(request: str) -> bool:
    """Tell whether a request of `count_requests` changes something."""
    return split(request)[0] in WRITES


def split(request: str) -> tuple[str, str]:
    """Return verb and resource, without its subresource."""
    verb, _, resource = request.partition(" ")
    return verb, resource.partition("/")[0]
