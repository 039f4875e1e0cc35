"""A job member's process on this machine; which template fields are honoured, ignored or refused.

| field | local backend |
|---|---|
| command, args, `$(NAME)` in them | honoured; `python` and `python3` run this interpreter; a command is required |
| env value | honoured, overrides MS_*, which override the submitting process's environment |
| (with several workers) | unless OMP_NUM_THREADS is set: a worker's share of the cores, to which `fit` binds it |
| env valueFrom.fieldRef | honoured: name, namespace, uid, a label, an annotation, podIP, hostIP, nodeName |
| env valueFrom other, envFrom | refused, unless optional: then left out |
| workingDir | honoured, from the submitting process's directory; it must exist |
| terminationGracePeriodSeconds | honoured |
| volumeMounts | the machine's own path is used, with a warning; refused when it does not exist |
| initContainers | refused: their results would be missing |
| further containers | warned of: they do not run |
| resources | warned of: nothing is limited |
| image | ignored, warned of unless it is this package's placeholder |
| everything about scheduling, security, probes | ignored |
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.local.reads import add_recorder
from kfp_mindspore.msjob.names import CONTAINER_NAME, WORKER
from kfp_mindspore.msjob.topology import VARIABLES, Endpoints, Member, build_topology
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.settings import CORES_VARIABLE, PLACEHOLDER_IMAGE, WORKER_COUNT_VARIABLE

PYTHON_WORDS = frozenset({"python", "python3"})
LOCAL_ADDRESS = "127.0.0.1"
THREADS_VARIABLE = "OMP_NUM_THREADS"
# Placeholder port for a topology that is only checked.
_ANY_PORT = 1024

_REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")
_KEYED_FIELD = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")
_PYTHON_OPTIONS_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})


@dataclass(frozen=True)
class ProcessSpec:
    """A process to start.

    Attributes:
        argv: Program and arguments.
        cwd: Working directory.
        environment: The whole environment.
    """

    argv: tuple[str, ...]
    cwd: Path
    environment: dict[str, str]


def build_process_spec(job: MSJob, member: Member, *, environment: Mapping[str, str], cwd: Path) -> ProcessSpec:
    """Return the process that runs a member.

    Args:
        job: Its job.
        member: The member.
        environment: The submitting process's environment.
        cwd: The submitting process's directory.
    """
    container = job.get_replica_spec(member.replica_type).container
    variables = dict(member.environment)
    for item in container.get("env") or []:
        value = _read_variable(job, member, item)
        if value is not None:
            variables[item["name"]] = _expand(value, variables)
    # A job submitted by another job's worker must not inherit its topology.
    base = {name: value for name, value in environment.items() if name not in VARIABLES}
    base.setdefault("PYTHONUNBUFFERED", "1")
    if WORKER_COUNT_VARIABLE in member.environment and THREADS_VARIABLE not in {**base, **variables}:
        # By default each process runs one OpenMP thread per core, and MindSpore's threads wait in loops: several
        # processes on the same cores starve each other.
        cores = list_cores() if member.replica_type == WORKER else []
        share = len(cores) // int(member.environment[WORKER_COUNT_VARIABLE])
        base[THREADS_VARIABLE] = str(max(1, share))
        if share:
            own = cores[member.index * share : (member.index + 1) * share]
            base[CORES_VARIABLE] = ",".join(map(str, own))
    words = [_expand(word, variables) for word in (*container.get("command", ()), *container.get("args", ()))]
    if words and words[0] in PYTHON_WORDS:
        words[0] = sys.executable
    directory = cwd / container.get("workingDir", "")
    return ProcessSpec(tuple(words), directory, add_recorder({**base, **variables}))


def check_job(job: MSJob, *, environment: Mapping[str, str], cwd: Path) -> list[str]:
    """Check whether this machine can run a job.

    Args:
        job: A valid job.
        environment: The submitting process's environment.
        cwd: The submitting process's directory.

    Returns:
        One sentence for each ignored or replaced field.

    Raises:
        ValidationError: It cannot; the message names the fields.
    """
    errors: list[str] = []
    warnings: list[str] = []
    seen: set[str] = set()
    for member in build_topology(job, Endpoints(LOCAL_ADDRESS, _ANY_PORT)).members:
        kind = member.replica_type if member.replica_type in job.ms_replica_specs else "Worker"
        if kind in seen:
            continue
        seen.add(kind)
        path = f"spec.msReplicaSpecs.{kind}.template.spec"
        pod = job.get_replica_spec(kind).template["spec"]
        _check_pod(pod, path, errors, warnings)
        containers = pod["containers"]
        index = next(i for i, item in enumerate(containers) if item["name"] == CONTAINER_NAME)
        where = f"{path}.containers[{index}]"
        before = len(errors)
        _check_container(containers[index], where, errors, warnings)
        if len(errors) == before:
            spec = build_process_spec(job, member, environment=environment, cwd=cwd)
            errors += _check_command(spec, where)
            if job.warm_spares and not is_python_program(spec.argv):
                warnings.append(
                    f"{where}.command: starts without warm spares, which run `python SCRIPT` or `python -m`"
                )
    if errors:
        raise ValidationError(errors, subject=f"MSJob {job.name} on this machine")
    return warnings


def list_cores() -> list[int]:
    """Return the numbers of the cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def get_script(argv: tuple[str, ...]) -> str | None:
    """Return the script that a Python command line runs; None for `-c`, `-m` and other programs."""
    if not argv or argv[0] != sys.executable:
        return None
    words = iter(argv[1:])
    for word in words:
        if word in ("-c", "-m", "-"):
            return None
        if word in _PYTHON_OPTIONS_WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return word
        elif not word.startswith("--") and word[-1] in "cm":
            # Combined flags, such as `-um package.module`.
            return None
    return None


def is_python_program(argv: Sequence[str]) -> bool:
    """Return whether a command line is a script or a module under this interpreter, without options but -u."""
    return bool(argv) and argv[0] == sys.executable and has_python_arguments(argv)


def has_python_arguments(argv: Sequence[str]) -> bool:
    """Return whether a Python command line runs a script or a module, without options but -u."""
    words = list(argv[1:])
    while words and words[0] == "-u":
        del words[0]
    return bool(words) and (not words[0].startswith("-") or (words[0] == "-m" and len(words) > 1))


def _check_pod(spec: Mapping[str, Any], path: str, errors: list[str], warnings: list[str]) -> None:
    if spec.get("initContainers"):
        errors.append(f"{path}.initContainers: must be absent, the local backend cannot run them")
    for index, container in enumerate(spec["containers"]):
        if container["name"] != CONTAINER_NAME:
            warnings.append(f"{path}.containers[{index}]: '{container['name']}' does not run on this machine")


def _check_container(container: Mapping[str, Any], path: str, errors: list[str], warnings: list[str]) -> None:
    if not container.get("command"):
        errors.append(
            f"{path}.command: is required, no image runs on this machine; append it: job submit … -- python train.py"
        )
    if container.get("image") not in (None, PLACEHOLDER_IMAGE):
        warnings.append(f"{path}.image: ignored, the job runs in this environment ({sys.executable})")
    if container.get("resources"):
        warnings.append(f"{path}.resources: ignored, nothing is limited on this machine")
    for index, mount in enumerate(container.get("volumeMounts") or []):
        where = f"{path}.volumeMounts[{index}].mountPath"
        target = str(mount.get("mountPath", ""))
        if target and Path(target).exists():
            warnings.append(f"{where}: this machine's own {target} is used")
        else:
            errors.append(f"{where}: must exist on this machine, which cannot mount volumes, got {target!r}")
    for index, source in enumerate(container.get("envFrom") or []):
        reference = source.get("configMapRef") or source.get("secretRef") or {}
        if not reference.get("optional"):
            errors.append(f"{path}.envFrom[{index}]: must be absent or optional, there is no cluster to read it from")
    for index, item in enumerate(container.get("env") or []):
        if problem := _check_source(item.get("valueFrom")):
            errors.append(f"{path}.env[{index}].valueFrom ({item['name']}): {problem}")


def _check_source(source: Any) -> str | None:
    if source is None:
        return None
    field = (source.get("fieldRef") or {}).get("fieldPath")
    if field is not None:
        return None if field in _FIELDS or _KEYED_FIELD.fullmatch(field) else f"cannot read {field} on this machine"
    reference = source.get("configMapKeyRef") or source.get("secretKeyRef") or {}
    return None if reference.get("optional") else "must be a value or optional, there is no cluster to read it from"


_FIELDS = frozenset(
    {"metadata.name", "metadata.namespace", "metadata.uid", "status.podIP", "status.hostIP", "spec.nodeName"}
)


def _read_variable(job: MSJob, member: Member, item: Mapping[str, Any]) -> str | None:
    if (source := item.get("valueFrom")) is None:
        return str(item.get("value") or "")
    path = (source.get("fieldRef") or {}).get("fieldPath")
    if path is None:
        return None
    if keyed := _KEYED_FIELD.fullmatch(path):
        own = (job.get_replica_spec(member.replica_type).template.get("metadata") or {}).get(keyed[1]) or {}
        values = {**own, **member.labels} if keyed[1] == "labels" else own
        return str(values.get(keyed[2], ""))
    fields = {
        "metadata.name": member.name,
        "metadata.namespace": job.namespace,
        "metadata.uid": str(job.metadata.get("uid", "")),
        "status.podIP": LOCAL_ADDRESS,
        "status.hostIP": LOCAL_ADDRESS,
        "spec.nodeName": socket.gethostname(),
    }
    return fields.get(path)


def _check_command(spec: ProcessSpec, path: str) -> list[str]:
    if not spec.cwd.is_dir():
        return [f"{path}.workingDir: must be a directory of this machine, got {str(spec.cwd)!r}"]
    if "/" in spec.argv[0]:
        program: str | None = str(spec.cwd / spec.argv[0])
        program = shutil.which(program) if program else None
    else:
        program = shutil.which(spec.argv[0], path=spec.environment.get("PATH"))
    if program is None:
        return [f"{path}.command[0]: must be a program of this machine, got {spec.argv[0]!r}"]
    script = get_script(spec.argv)
    if script is not None and not (spec.cwd / script).exists():
        return [f"{path}.command: no such script {script!r} in {spec.cwd}"]
    return []


def _expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` as Kubernetes does: unknown names stay, `$$` becomes `$`."""

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return _REFERENCE.sub(replace, text)
