"""Messages of a Docker daemon while it builds and pushes, as progress, results and errors."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_mindspore.errors import KfpMindSporeError, ProcessFailedError, UserError
from kfp_mindspore.images.progress import BuildProgress, OnProgress

KEPT_LINES = 20
_STEP = re.compile(r"Step (\d+/\d+) : (.*)", re.DOTALL)
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_REUSED = ("Layer already exists", "Mounted from")


@dataclass
class PushedLayers:
    """A push's layers; keys are their diffIDs' heads.

    Args:
        sent: Uploaded layer bytes, before compression.
        reused: Layers that the registry had or mounted.
        digest: The manifest's digest, `sha256:…`.
    """

    sent: dict[str, int] = field(default_factory=dict)
    reused: set[str] = field(default_factory=set)
    digest: str = ""


def read_build(messages: Iterable[Mapping[str, Any]], on_progress: OnProgress) -> str:
    """Read the legacy builder's messages to their end.

    Args:
        messages: The daemon's decoded stream.
        on_progress: Called with every step and output line.

    Returns:
        The image's ID, `sha256:…`.

    Raises:
        ProcessFailedError: A step failed; the message names it, `log` has its last lines.
        KfpMindSporeError: The stream ended without an image.
    """
    step, image = "", ""
    lines: deque[str] = deque(maxlen=KEPT_LINES)
    for message in messages:
        if error := _get_error(message):
            raise ProcessFailedError(f"{step or 'build'}: {error}", log=list(lines))
        image = (message.get("aux") or {}).get("ID", image)
        if "status" in message:
            on_progress(_read_transfer(message, "Pull"))
        for line in _COLOR.sub("", str(message.get("stream", ""))).splitlines():
            if matched := _STEP.match(line.strip()):
                step = f"Step {matched[1]} ({matched[2].strip()})"
                lines.clear()
                on_progress(BuildProgress(step))
            elif line.strip():
                lines.append(line.rstrip())
                on_progress(BuildProgress(step, text=line.rstrip()))
    if not image:
        raise KfpMindSporeError(f"{step or 'build'}: the Docker daemon ended the build without an image")
    return image


def read_push(messages: Iterable[Mapping[str, Any]], target: str, on_progress: OnProgress) -> PushedLayers:
    """Read a push's messages to their end.

    Args:
        messages: The daemon's decoded stream.
        target: The pushed tag, for errors.
        on_progress: Called with every layer's bytes.

    Raises:
        UserError: The registry refuses the login, or does not use HTTPS where the daemon expects it.
        KfpMindSporeError: The registry or the connection failed.
    """
    pushed = PushedLayers()
    sizes: dict[str, int] = {}
    for message in messages:
        if error := _get_error(message):
            raise _explain_registry_error(f"push of {target}: {error}")
        layer, status = str(message.get("id", "")), str(message.get("status", ""))
        if status.startswith(_REUSED):
            pushed.reused.add(layer)
        elif status == "Pushed":
            pushed.sent[layer] = sizes.get(layer, 0)
        pushed.digest = (message.get("aux") or {}).get("Digest", pushed.digest)
        if layer:
            progress = _read_transfer(message, "Push")
            sizes[layer] = max(sizes.get(layer, 0), progress.done_bytes)
            on_progress(progress)
    if not pushed.digest:
        raise KfpMindSporeError(f"push of {target}: the Docker daemon ended it without a digest")
    return pushed


def _get_error(message: Mapping[str, Any]) -> str:
    detail = message.get("errorDetail") or {}
    return str(detail.get("message") or message.get("error") or "").strip()


def _explain_registry_error(text: str) -> KfpMindSporeError:
    lowered = text.lower()
    if "http response to https client" in lowered:
        return UserError(
            text, hint="Add the registry to insecure-registries in the daemon's daemon.json, or give it a certificate."
        )
    if "x509" in lowered or "certificate" in lowered:
        return UserError(text, hint="The daemon trusts authorities in /etc/docker/certs.d/HOST:PORT/ca.crt.")
    if any(word in lowered for word in ("unauthorized", "no basic auth", "authentication required")):
        return UserError(text, hint="Log in: docker login HOST, or name another docker config.json.")
    if "denied" in lowered:
        return UserError(text, hint="The account has no permission for this repository: get it, or log in again.")
    return KfpMindSporeError(text)


def _read_transfer(message: Mapping[str, Any], verb: str) -> BuildProgress:
    detail = message.get("progressDetail") or {}
    done, total = int(detail.get("current") or 0), int(detail.get("total") or 0)
    return BuildProgress(
        f"{verb} layer" if message.get("id") else verb,
        item=str(message.get("id", "")),
        done_bytes=done,
        # The total has the files only, the bytes done have the tar's headers too.
        total_bytes=max(total, done) if total else 0,
        text="" if total else str(message.get("status", "")),
    )
