"""A service's log of requests and responses: its options, and whether KServe's agent or our server writes it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.options import list_options, option

MODES = ("all", "request", "response")
AUTO, KSERVE, SERVER = "auto", "kserve", "server"
HTTP_SCHEMES = ("http", "https")
STORE_SCHEMES = ("s3", "gs")
# CloudEvents' own attributes.
_RESERVED = ("id", "source", "specversion", "type", "time", "datacontenttype", "data")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?")
# KServe's agent writes an object each event below PREFIX/NAMESPACE/NAME/predictor/PATH, and needs a PATH.
_STORE_PATH = "log"


@dataclass(frozen=True)
class LoggerOptions:
    """The log of a service's requests and responses, as CloudEvents.

    Args:
        url: `http(s)://…`, to which each event is sent; `s3://…`, `gs://…` or a path, to which JSON lines are written.
            A path that ends in .jsonl is a file, another one a folder.
        mode: Which events are logged.
        sample: Share of requests that are logged, with their responses.
        omit: Columns, inputs and outputs that are left out.
        hash: Columns, inputs and outputs whose values are logged as HMAC-SHA256, with the key in the servers'
            environment variable MINDSPORESERVER_LOG_KEY.
        texts: Log a language model's texts, not only its token counts.
        writer: What writes the log on a cluster: `kserve` (its agent, a container of each pod), or the `server`. By
            default KServe's agent, unless it lacks an option.
        attributes: Further attributes of each event.
    """

    url: str
    mode: str = option(MODES[0], enum=MODES)
    sample: float = option(1.0, exclusiveMinimum=0, maximum=1)
    omit: Sequence[str] = ()
    hash: Sequence[str] = ()
    texts: bool = False
    writer: str = option(AUTO, enum=(AUTO, KSERVE, SERVER))
    attributes: Mapping[str, str] = option({})

    @property
    def scheme(self) -> str:
        """The URL's scheme; empty for a path."""
        match = _SCHEME.match(self.url)
        return match[1].lower() if match else ""


def list_logger_errors(value: Any) -> list[str]:
    """Return one sentence for each error in logger options as JSON has them; an empty object has none."""
    if not isinstance(value, Mapping):
        return [f'logger: must be an object such as {{"url": "s3://bucket/log"}}, got {value!r}']
    if not value:
        return []
    declared = {entry.name: entry for entry in list_options(LoggerOptions)}
    errors = [f"{name}: unknown field, expected {', '.join(declared)}" for name in value if name not in declared]
    errors += [error for name in value if name in declared for error in declared[name].list_errors(value[name])]
    if not errors:
        errors += _list_value_errors(LoggerOptions(**{"url": "", **value}))
    return [f"logger.{error}" for error in errors]


def _list_value_errors(options: LoggerOptions) -> list[str]:
    errors = []
    schemes = (*HTTP_SCHEMES, *STORE_SCHEMES)
    if not options.url or (_SCHEME.match(options.url) and not re.match(rf"({'|'.join(schemes)})://[^/]", options.url)):
        known = ", ".join(f"{scheme}://" for scheme in schemes)
        errors.append(f"url: must be one of {known}, or a path, got {options.url!r}")
    errors += [f"hash: {name!r} is in omit, too" for name in options.hash if name in options.omit]
    for name in options.attributes:
        if name in _RESERVED or not re.fullmatch(r"[a-z0-9]{1,20}", name):
            errors.append(
                f"attributes: must be names of at most 20 letters a to z and digits, other than "
                f"{', '.join(_RESERVED)}, got {name!r}"
            )
    return errors


def read_logger(value: Any, source: str = "") -> LoggerOptions | None:
    """Return logger options from an object or its JSON text; None for an empty one.

    Args:
        value: The object or text.
        source: Name of the value for messages, such as a flag.

    Raises:
        ValidationError: Naming each field that is wrong.
    """
    if isinstance(value, str) and value:
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValidationError([f"logger: not valid JSON ({error})"], subject=source) from None
    if errors := list_logger_errors(value or {}):
        raise ValidationError(errors, subject=source)
    return LoggerOptions(**value) if value else None


def list_writer_errors(options: LoggerOptions, *, is_own: bool, is_language: bool) -> list[str]:
    """Return one sentence for each option that the writer on a cluster does not have.

    Args:
        options: The options.
        is_own: Whether mindsporeserver serves the model.
        is_language: Whether it is a language model.
    """
    if is_own and options.writer != KSERVE:
        return []
    who = "KServe's agent" if options.writer == KSERVE else "another server's log, KServe's agent,"
    errors = [f"logger.{name}: {who} does not have it" for name in _list_own_options(options)]
    if is_language and not options.texts:
        errors.append(f"logger.texts: must be true, since {who} logs texts")
    return errors


def uses_agent(options: LoggerOptions, *, is_own: bool, is_language: bool, has_account: bool) -> bool:
    """Return whether KServe's agent writes the log on a cluster: it can neither sample nor change a body.

    Args:
        options: The options, without errors of `list_writer_errors`.
        is_own: Whether mindsporeserver serves the model.
        is_language: Whether it is a language model.
        has_account: Whether the service has a service account, from whose Secrets the agent gets a store's credentials.
    """
    if options.writer != AUTO or not is_own:
        return options.writer != SERVER
    if _list_own_options(options) or (is_language and not options.texts):
        return False
    return has_account or options.scheme in HTTP_SCHEMES


def _list_own_options(options: LoggerOptions) -> list[str]:
    """Return the options that only our server has."""
    names = [name for name in ("omit", "hash", "attributes") if getattr(options, name)]
    names += ["sample"] if options.sample < 1 else []
    names += ["writer"] if options.writer == SERVER else []
    return [*names, *(["url"] if not options.scheme else [])]


def build_logger_spec(options: LoggerOptions, service_account: str) -> dict[str, Any]:
    """Return KServe's LoggerSpec.

    Args:
        options: The options.
        service_account: Whose Secrets have a store's credentials.
    """
    spec: dict[str, Any] = {"mode": options.mode, "url": options.url}
    if options.scheme in STORE_SCHEMES:
        spec["storage"] = {"path": _STORE_PATH, "parameters": {"format": "json"}, "key": ""}
        if service_account:
            spec["storage"]["serviceAccountName"] = service_account
    return spec


def build_logger_flag(value: Mapping[str, Any], name: str, namespace: str, *, is_canary: bool) -> str:
    """Return the server's flag for logger options.

    Args:
        value: The options.
        name: Service name.
        namespace: Service namespace.
        is_canary: Whether the server is a canary's.
    """
    own = {
        "inferenceservicename": name,
        "namespace": namespace,
        "component": "predictor",
        "endpoint": "canary" if is_canary else "default",
    }
    given = {key: item for key, item in value.items() if key != "writer"}
    given["attributes"] = {**own, **value.get("attributes", {})}
    return f"--logger={json.dumps(given, sort_keys=True)}"


def resolve_path(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return logger options with an absolute path: servers have another working directory."""
    options = read_logger(value)
    if options is None or options.scheme:
        return dict(value)
    return {**value, "url": str(Path(options.url).absolute())}
