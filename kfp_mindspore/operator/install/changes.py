"""What an installation changes in the stored definition of MSJob, and the fields that jobs would lose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import DEFINITIONS
from kfp_mindspore.msjob.api.names import MSJOBS, VERSION_LABEL

FieldPath = tuple[str, ...]
_SHOWN_JOBS = 3


@dataclass(frozen=True)
class DefinitionChange:
    """The difference between the stored definition and another.

    Attributes:
        old: The stored definition's version; `unknown` without a label.
        new: The other's version.
        added: Fields that only the other has; of a new object, the object alone.
        removed: Fields that only the stored one has.
    """

    old: str
    new: str
    added: tuple[str, ...]
    removed: tuple[str, ...]


def check_definition(cluster: Cluster, definition: Mapping[str, Any]) -> DefinitionChange | None:
    """Return what a definition changes in the stored one; None without one, or without a change.

    Args:
        cluster: Where it is to be applied.
        definition: The definition.

    Raises:
        UserError: Jobs have fields that it lacks: the API server would drop them.
    """
    try:
        stored = cluster.get(DEFINITIONS, definition["metadata"]["name"])
    except NotFoundError:
        return None
    before, after = (_get_schema(item) for item in (stored, definition))
    old, new = (_get_version(item) for item in (stored, definition))
    removed = dict(list_missing(before, after))
    change = DefinitionChange(
        old, new, tuple(".".join(path) for path, _ in list_missing(after, before)), tuple(map(".".join, removed))
    )
    if not removed:
        return change if change.added or old != new else None
    lost: dict[str, list[str]] = {}
    for job in cluster.list(MSJOBS):
        for path, field in removed.items():
            # The default is filled in again by the definition that has the field.
            if any(value != field.get("default") for value in _find_values(job, path)):
                name = f"{job['metadata']['namespace']}/{job['metadata']['name']}"
                lost.setdefault(".".join(path), []).append(name)
    if lost:
        raise UserError(
            f"definition of MSJob {new}: lacks fields that jobs have by the installed one ({old}), and would lose: "
            + "; ".join(f"{field} ({_shorten(names)})" for field, names in lost.items()),
            hint="Install a version that has these fields, or delete these jobs first.",
        )
    return change


def list_missing(
    schema: Mapping[str, Any], other: Mapping[str, Any], path: FieldPath = ()
) -> Iterator[tuple[FieldPath, Any]]:
    """Yield path and schema of the outermost fields that another schema lacks."""
    if other.get("x-kubernetes-preserve-unknown-fields"):
        return
    known, rest = other.get("properties") or {}, other.get("additionalProperties")
    for name, field in (schema.get("properties") or {}).items():
        below = known.get(name, rest)
        if isinstance(below, Mapping):
            yield from list_missing(field, below, (*path, name))
        elif not below:
            yield (*path, name), field
    for key, step in (("additionalProperties", "*"), ("items", "[]")):
        if isinstance(schema.get(key), Mapping) and other.get(key) is not True:
            yield from list_missing(schema[key], other.get(key) or {}, (*path, step))


def _find_values(value: Any, path: FieldPath) -> Iterator[Any]:
    if not path:
        yield value
    elif path[0] in ("*", "[]"):
        for item in value.values() if isinstance(value, dict) else value or ():
            yield from _find_values(item, path[1:])
    elif isinstance(value, dict) and path[0] in value:
        yield from _find_values(value[path[0]], path[1:])


def _get_schema(definition: Mapping[str, Any]) -> Any:
    schemas = {item["name"]: item["schema"]["openAPIV3Schema"] for item in definition["spec"]["versions"]}
    return schemas.get(MSJOBS.version) or {}


def _get_version(definition: Mapping[str, Any]) -> str:
    return str((definition["metadata"].get("labels") or {}).get(VERSION_LABEL, "unknown"))


def _shorten(names: list[str]) -> str:
    more = len(names) - _SHOWN_JOBS
    return ", ".join(names[:_SHOWN_JOBS]) + (f" and {more} more" if more > 0 else "")
