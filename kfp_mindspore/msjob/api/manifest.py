"""Conversion from dataclasses and API models to JSON manifests and back, field by field."""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Mapping
from typing import Any

_SCALARS = frozenset({str, int, float, bool, type(None)})


@functools.cache
def to_field_name(name: str) -> str:
    """Return a field's name in the manifest: `clean_pod_policy` is `cleanPodPolicy`."""
    head, *tail = name.split("_")
    return head + "".join(word.title() for word in tail)


def serialize(value: Any) -> Any:
    """Return JSON types for this package's dataclasses, kubernetes and kubeflow-training client models, and times.

    Fields that are None are dropped; items in plain dicts and lists are kept.
    """
    # Fast path: the input is already JSON-serialisable.
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is dict:
        return {key: serialize(item) for key, item in value.items()}
    if kind is list:
        return [serialize(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {to_field_name(field.name): getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: serialize(item) for name, item in fields.items() if item is not None}
    if isinstance(names := getattr(value, "attribute_map", None), Mapping):
        items = {wire: getattr(value, name) for name, wire in names.items()}
        return {wire: serialize(item) for wire, item in items.items() if item is not None}
    if isinstance(value, Mapping):
        return {key: serialize(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [serialize(item) for item in value]
    if isinstance(value, datetime.datetime):
        return format_time(value)
    return value


def deserialize(kind: type[Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dataclass's constructor arguments from a manifest; unknown fields are dropped."""
    return {
        field.name: document[wire]
        for field in dataclasses.fields(kind)
        if (wire := to_field_name(field.name)) in document
    }


def format_time(time: datetime.datetime) -> str:
    """Return a time as RFC 3339 in UTC, such as `2026-01-31T12:00:00.250000Z`."""
    return time.astimezone(datetime.timezone.utc).replace(tzinfo=None).isoformat() + "Z"


def parse_time(value: str | datetime.datetime | None) -> datetime.datetime | None:
    """Parse an RFC 3339 time; the result is in UTC."""
    if value is None or isinstance(value, datetime.datetime):
        return value
    return datetime.datetime.fromisoformat(value.replace("Z", "+00:00")).astimezone(datetime.timezone.utc)


def parse_lease(value: str | None) -> datetime.datetime | None:
    """Return the time at which a lease expires; None without one, and for a value that is no RFC 3339 time."""
    try:
        time = datetime.datetime.fromisoformat((value or "").replace("Z", "+00:00"))
        return None if time.tzinfo is None else time.astimezone(datetime.timezone.utc)
    except (ValueError, OverflowError):
        return None


def now() -> datetime.datetime:
    """Return the present time in UTC."""
    return datetime.datetime.now(datetime.timezone.utc)
