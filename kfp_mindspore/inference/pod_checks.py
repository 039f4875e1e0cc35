"""Checks of the options that a service's pods get on a cluster: scaling, environment, volumes and placement."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kfp_mindspore.errors import suggest
from kfp_mindspore.kube.names import LABEL_KEY, list_name_errors
from kfp_mindspore.kube.pod_schema import build_pod_schema, list_fields
from kfp_mindspore.kube.schema_validation import build_validator, drop_nulls, format_path

CPU, MEMORY, IN_FLIGHT, WAITING = "cpu", "memory", "in_flight", "waiting"
SCALE_METRICS = (CPU, MEMORY, IN_FLIGHT, WAITING)
# Kinds that `env_from` names, as `kubectl set env --from` does, and their EnvFromSources.
ENV_SOURCES = {"secret": "secretRef", "configmap": "configMapRef"}
_ENV_SOURCE = re.compile(rf"({'|'.join(ENV_SOURCES)})/(.+)")
_MOST_PERCENT = 100


def list_scaling_errors(
    *,
    replicas: int,
    min_replicas: int,
    max_replicas: int,
    scale_metric: str,
    scale_target: int,
    prometheus: str,
    is_language: bool,
) -> list[str]:
    """Return one sentence for each error in a service's bounds and scale metric; see `Service` for the arguments."""
    if not max_replicas:
        given = {
            "min_replicas": min_replicas != 1,
            "scale_metric": scale_metric != CPU,
            "scale_target": scale_target != 0,
        }
        return [f"{name}: needs max_replicas, which is 0 for a fixed count" for name, is_set in given.items() if is_set]
    errors = []
    if replicas != 1:
        errors.append(f"replicas: is the count without max_replicas; set min_replicas, got {replicas}")
    if min_replicas > max_replicas:
        errors.append(f"min_replicas: must be ≤ max_replicas ({max_replicas}), got {min_replicas}")
    if scale_metric in (CPU, MEMORY) and scale_target > _MOST_PERCENT:
        errors.append(f"scale_target: must be ≤ {_MOST_PERCENT} percent for {scale_metric}, got {scale_target}")
    if not min_replicas:
        # With no pod there is no metric of a pod, by which an autoscaler of Deployments would start one.
        if scale_metric != IN_FLIGHT:
            errors.append(
                f"min_replicas: 0 needs scale_metric {IN_FLIGHT!r}, which Knative counts, got {scale_metric!r}"
            )
        return errors
    if scale_metric in (IN_FLIGHT, WAITING):
        expected, kind = (WAITING, "language") if is_language else (IN_FLIGHT, "tensor")
        if scale_metric != expected:
            errors.append(f"scale_metric: must be {expected!r} for {kind} models, got {scale_metric!r}")
        if not re.match(r"https?://.", prometheus):
            errors.append(
                f"prometheus: must be http://… or https://… with scale_metric {scale_metric!r}, got {prometheus!r}"
            )
    return errors


def list_pod_errors(
    *,
    env: Mapping[str, str],
    env_from: Sequence[str],
    tolerations: Sequence[Mapping[str, Any]],
    volumes: Mapping[str, Any],
    image_pull_secrets: Sequence[str],
    priority_class: str,
    spread: str,
    runtime: str,
) -> list[str]:
    """Return one sentence for each error in options of a service's pods, whose types are right."""
    errors = [f"env: must be names without '=', got {name!r}" for name in env if not name or "=" in name]
    for index, entry in enumerate(env_from):
        match = _ENV_SOURCE.fullmatch(entry)
        if match is None:
            errors.append(f"env_from[{index}]: must be secret/NAME or configmap/NAME, got {entry!r}")
        else:
            errors += list_name_errors(f"env_from[{index}]", match[2])
    errors += _list_schema_errors("tolerations", "Toleration", enumerate(tolerations))
    errors += _list_volume_errors(volumes)
    errors += list_name_errors("image_pull_secrets", *image_pull_secrets)
    for option, name in (("priority_class", priority_class), ("runtime", runtime)):
        if name:
            errors += list_name_errors(option, name)
    if spread and not re.fullmatch(LABEL_KEY, spread):
        errors.append(f"spread: must be the key of a node's label, such as kubernetes.io/hostname, got {spread!r}")
    return errors


def _list_volume_errors(volumes: Mapping[str, Any]) -> Iterator[str]:
    sources = sorted(list_fields("Volume") - {"name"})
    for path, source in volumes.items():
        if not path.startswith("/"):
            yield f"volumes: must be absolute paths, got {path!r}"
        elif not isinstance(source, Mapping) or len(source) != 1:
            yield f'volumes.{path}: must be a volume source such as {{"emptyDir": {{}}}}, got {source!r}'
        elif (kind := next(iter(source))) not in sources:
            yield f"volumes.{path}.{kind}: unknown volume source{suggest(kind, sources)}"
        else:
            yield from _list_schema_errors("volumes", "Volume", [(path, {"name": "volume", **source})])


def _list_schema_errors(option: str, definition: str, values: Any) -> Iterator[str]:
    """Yield a sentence for each field that a definition of Kubernetes does not have so."""
    for key, value in values:
        place = f"{option}[{key}]" if isinstance(key, int) else f"{option}.{key}"
        for error in _load_validator(definition).iter_errors(drop_nulls(value)):
            path = format_path(error.absolute_path)
            yield f"{place}{f'.{path}' if path else ''}: {error.message}"


@functools.cache
def _load_validator(definition: str) -> Any:
    return build_validator({**build_pod_schema(definition), "type": "object"})
