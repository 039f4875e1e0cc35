"""A compiled pipeline's images."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.runs.compiled.spec import PipelineSpec
from kfp_mindspore.settings import IMAGE_VARIABLE, PLACEHOLDER_PREFIX


def set_image(spec: PipelineSpec, image: str) -> PipelineSpec:
    """Return a copy of a compiled pipeline with placeholder images replaced.

    A step with a replaced image gets the image in KFP_MINDSPORE_IMAGE, for the job's pods. String constants are
    replaced too. Images that an earlier call has set are replaced like placeholders.

    Args:
        spec: A compiled pipeline; not modified.
        image: The image, preferably by digest (`registry/name@sha256:…`).

    Raises:
        UserError: `image` is empty or contains white space.
    """
    if not image or any(character.isspace() for character in image):
        raise UserError(
            f"image: must be the name of an image, got {image!r}",
            hint="Expected HOST/NAME:TAG or HOST/NAME@sha256:…, as `kfp-mindspore image build` prints it.",
        )
    changed = copy.deepcopy(spec)
    previous = {container["image"] for container in _list_containers(changed) if _has_own_image(container)}
    for container in _list_containers(changed):
        if _is_placeholder(container["image"]) and IMAGE_VARIABLE not in _get_environment(container):
            container["env"] = [*container.get("env", []), {"name": IMAGE_VARIABLE, "value": image}]
    _map_strings(changed, lambda text: image if text in previous or _is_placeholder(text) else text)
    return changed


def list_placeholders(spec: PipelineSpec) -> list[str]:
    """Return a compiled pipeline's placeholder images, sorted."""
    placeholders: set[str] = set()

    def collect(text: str) -> str:
        if _is_placeholder(text):
            placeholders.add(text)
        return text

    _map_strings(spec, collect)
    return sorted(placeholders)


def _list_containers(spec: PipelineSpec) -> Iterator[dict[str, Any]]:
    for executor in spec.get("deploymentSpec", {}).get("executors", {}).values():
        if "image" in executor.get("container", {}):
            yield executor["container"]


def _get_environment(container: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value") for entry in container.get("env", [])}


def _has_own_image(container: dict[str, Any]) -> bool:
    return bool(_get_environment(container).get(IMAGE_VARIABLE) == container["image"])


def _is_placeholder(value: str) -> bool:
    return value.startswith(PLACEHOLDER_PREFIX) and "\n" not in value


def _map_strings(value: Any, function: Callable[[str], str]) -> None:
    for key, entry in list(value.items() if isinstance(value, dict) else enumerate(value)):
        if isinstance(entry, str):
            value[key] = function(entry)
        elif isinstance(entry, (dict, list)):
            _map_strings(entry, function)
