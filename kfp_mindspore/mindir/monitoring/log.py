"""A log of requests and responses: CloudEvents as JSON lines, or the objects that KServe's agent stores."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kfp_mindspore.data.fetch import fetch_source
from kfp_mindspore.errors import NotFoundError, UserError

REQUEST, RESPONSE = "org.kubeflow.serving.inference.request", "org.kubeflow.serving.inference.response"
_HINT = "A log is a file or folder of JSON lines with CloudEvents, as `service create --logger` has them written."

Columns = dict[str, list[Any]]
"""Values a row, by input, column or output; by "" for rows without names."""


@dataclass
class Exchange:
    """A request and its response, with equal IDs.

    Args:
        id: Event ID.
        time: The first event's time, in seconds since the epoch; -inf without one.
        request: The request's columns; None where it was not logged or is not readable.
        response: The response's columns, likewise.
    """

    id: str
    time: float
    request: Columns | None = None
    response: Columns | None = None

    @property
    def rows(self) -> int:
        """Row count, of the request where it is there."""
        return count_rows(self.request) or count_rows(self.response)


@dataclass(frozen=True)
class RequestLog:
    """A log's exchanges.

    Args:
        exchanges: In the order of their times.
        skipped: How many lines and events were skipped, by reason.
    """

    exchanges: tuple[Exchange, ...]
    skipped: Mapping[str, int] = field(default_factory=dict)


def open_location(location: str, *, hint: str = "") -> contextlib.AbstractContextManager[Path]:
    """Return a context with a local path, for a URI of a download.

    Raises:
        NotFoundError: There is no such path.
    """
    if "://" not in location and not Path(location).expanduser().exists():
        raise NotFoundError(f"{location}: no such file or folder", hint=hint)
    return fetch_source(location)


def count_rows(columns: Columns | None) -> int:
    """Return how many rows columns have; 0 for None."""
    return max(map(len, columns.values()), default=0) if columns else 0


def read_log(location: str, service: str = "") -> RequestLog:
    """Read a log.

    Args:
        location: A file, a folder with files, or a URI.
        service: Only events of this InferenceService; empty for all.

    Raises:
        NotFoundError: There is nothing.
        UserError: It cannot be read, or has no event of a request or response.
    """
    skipped: Counter[str] = Counter()
    exchanges: dict[str, Exchange] = {}
    with open_location(location, hint=_HINT) as path:
        files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
        for file in files:
            for value in _read_values(file, skipped):
                _add_event(value, service, exchanges, skipped)
    if not exchanges:
        found = ", ".join(f"{count} {reason}" for reason, count in skipped.items()) or "no lines"
        raise UserError(f"{location}: has no event of a request or response, found {found}", hint=_HINT)
    return RequestLog(tuple(sorted(exchanges.values(), key=lambda one: one.time)), dict(skipped))


def select_window(log: RequestLog, window: str) -> list[Exchange]:
    """Return the exchanges of a window, which ends with the log's last event.

    Args:
        log: The log.
        window: A row count such as `1000`, or a duration such as `30m`, `24h` or `7d`; empty for the whole log.

    Raises:
        UserError: It is neither.
    """
    exchanges = list(log.exchanges)
    if not window:
        return exchanges
    number, unit = (window[:-1], window[-1]) if window[-1:] in _UNITS else (window, "")
    if not number.isdigit() or not int(number):
        raise UserError(f"window: must be a number of rows, or a duration such as 30m, 24h or 7d, got {window!r}")
    if unit:
        start = exchanges[-1].time - int(number) * _UNITS[unit]
        return [one for one in exchanges if one.time > start]
    rows, first = 0, len(exchanges)
    while first and rows < int(number):
        first -= 1
        rows += exchanges[first].rows
    return exchanges[first:]


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _read_values(file: Path, skipped: Counter[str]) -> Iterator[Any]:
    """Yield a file's JSON values: one a line, or a whole document; arrays' items by themselves."""
    with file.open("rb") as stream:
        lines = 0
        for line in stream:
            if not line.strip():
                continue
            lines += 1
            try:
                value = json.loads(line)
            except ValueError:
                if lines == 1 and (whole := _read_document(file)) is not None:
                    yield from whole if isinstance(whole, list) else [whole]
                    return
                # A writer that was killed leaves half a line.
                skipped["lines that are no JSON"] += 1
                continue
            yield from value if isinstance(value, list) else [value]


def _read_document(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except ValueError:
        return None


def _add_event(value: Any, service: str, exchanges: dict[str, Exchange], skipped: Counter[str]) -> None:
    if isinstance(value, Mapping) and "reqType" in value:
        value = _convert_stored(value)
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind not in (REQUEST, RESPONSE) or not value.get("id"):
        skipped["foreign events"] += 1
        return
    if service and value.get("inferenceservicename") != service:
        skipped["events of other services"] += 1
        return
    if value.get("endpoint") == "canary":
        # Another model has answered.
        skipped["events of canaries"] += 1
        return
    try:
        columns = read_columns(_read_data(value), is_response=kind == RESPONSE)
    except (ValueError, TypeError, KeyError, AttributeError):
        skipped["bodies that are neither V1 nor V2"] += 1
        return
    moment = _parse_time(value.get("time"))
    exchange = exchanges.setdefault(str(value["id"]), Exchange(str(value["id"]), moment))
    exchange.time = min(exchange.time, moment) if exchange.time > -math.inf else moment
    if kind == REQUEST:
        exchange.request = columns
    else:
        exchange.response = columns


def _convert_stored(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return KServe's LogRequest (0.20), with bytes in base 64, as a CloudEvent."""
    return {
        "id": value.get("id"),
        "type": value.get("reqType"),
        "time": value.get("occurrenceTime"),
        "inferenceservicename": value.get("inferenceService"),
        "endpoint": value.get("endpoint"),
        "data_base64": value.get("bytes") or "",
    }


def _read_data(event: Mapping[str, Any]) -> Any:
    data = event.get("data")
    if data is None:
        try:
            data = base64.b64decode(event["data_base64"], validate=True)
        except binascii.Error as error:
            raise ValueError(str(error)) from None
    return json.loads(data) if isinstance(data, str | bytes) else data


def _parse_time(value: Any) -> float:
    if not isinstance(value, str):
        return -math.inf
    # Python 3.10 reads neither Z nor Go's nanoseconds.
    text, _, rest = value.replace("Z", "+00:00").partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    try:
        moment = datetime.fromisoformat(text + (f".{digits[:6]:0<6}" if digits else "") + rest[len(digits) :])
    except ValueError:
        return -math.inf
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def read_columns(body: Mapping[str, Any], *, is_response: bool) -> Columns:
    """Return a V1 or V2 body's columns.

    Raises:
        ValueError: It is neither; also TypeError, KeyError and AttributeError.
    """
    tensors = body.get("outputs" if is_response else "inputs")
    if isinstance(tensors, list) and tensors and isinstance(tensors[0], Mapping) and "datatype" in tensors[0]:
        return {str(tensor["name"]): _read_tensor(tensor) for tensor in tensors}
    rows = body["predictions"] if is_response else body.get("instances", body.get("inputs"))
    if isinstance(rows, Mapping):
        return {str(name): [_read_value(value) for value in values] for name, values in rows.items()}
    if not isinstance(rows, list):
        raise ValueError("rows must be a list")
    if not any(isinstance(row, Mapping) and row.keys() != {"b64"} for row in rows):
        return {"": [_read_value(row) for row in rows]}
    names = dict.fromkeys(str(name) for row in rows for name in row)
    return {name: [_read_value(row.get(name)) for row in rows] for name in names}


def _read_tensor(tensor: Mapping[str, Any]) -> list[Any]:
    data, shape = tensor["data"], [int(size) for size in tensor["shape"]]
    if len(shape) < 2 or not data or isinstance(data[0], list):
        return [_read_value(value) for value in data]
    return _nest(data, shape)


def _nest(data: Sequence[Any], shape: Sequence[int]) -> list[Any]:
    if math.prod(shape) != len(data):
        raise ValueError(f"{len(data)} values for shape {shape}")
    values = [_read_value(value) for value in data]
    for size in reversed(shape[1:]):
        values = [values[start : start + size] for start in range(0, len(values), size)]
    return values


def _read_value(value: Any) -> Any:
    """Return a value of JSON; bytes for base 64."""
    if isinstance(value, Mapping) and value.keys() == {"b64"}:
        return base64.b64decode(value["b64"], validate=True)
    return value
