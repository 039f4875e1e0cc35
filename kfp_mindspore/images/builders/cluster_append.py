"""Runs in a build's pod: the append builder, over the context and the settings that the client left there.

`python -m kfp_mindspore.images.builders.cluster_append --target HOST/NAME:TAG --archive FILE`
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kfp_mindspore import files
from kfp_mindspore.errors import KfpMindSporeError, UserError
from kfp_mindspore.images.builders.append import AppendBuilder
from kfp_mindspore.images.builders.cluster_layout import (
    CA_FILE,
    LOGIN_FILE,
    PLAN_FILE,
    PULL_FOLDER,
    PUSH_FOLDER,
    REGISTRY_FILE,
    SETTINGS_FOLDER,
    TERMINATION_FILE,
    WORK_FOLDER,
)
from kfp_mindspore.images.builders.cluster_registry import read_registry_settings
from kfp_mindspore.images.containerfile import SOURCES_FOLDER
from kfp_mindspore.images.context import BuildContext, Entry
from kfp_mindspore.images.layer import CHUNK_BYTES
from kfp_mindspore.images.plan import ImagePlan
from kfp_mindspore.images.reference import parse_reference
from kfp_mindspore.images.registry.configuration import RegistryConfig
from kfp_mindspore.images.result import Progress

# What is not in the context: everything else that the plan's digest covers.
_PLAN_FIELDS = (
    "base",
    "base_digest",
    "platform",
    "requirements",
    "containerfile",
    "replaced",
    "workdir",
    "user",
    "env",
    "command",
    "labels",
    "created",
)


def write_plan(plan: ImagePlan) -> str:
    """Return a plan without its sources as JSON."""
    return json.dumps({name: _to_json(getattr(plan, name)) for name in _PLAN_FIELDS}, sort_keys=True)


def read_plan(text: str, context: BuildContext) -> ImagePlan:
    """Return the plan of a JSON text and sources."""
    fields: dict[str, Any] = json.loads(text)
    for name in ("requirements", "command"):
        fields[name] = tuple(fields[name])
    return ImagePlan(context, **fields)


def unpack_context(archive: Path, folder: Path) -> BuildContext:
    """Unpack the sources of a context's tar into a folder and return them as they were.

    Raises:
        UserError: The tar is damaged.
    """
    entries = []
    head = f"{SOURCES_FOLDER}/"
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if not member.name.startswith(head) or member.isdir():
                    continue
                path = member.name[len(head) :]
                if member.issym():
                    entries.append(Entry(path, 0, link=member.linkname))
                    continue
                content = tar.extractfile(member)
                if content is None:
                    raise UserError(f"{archive}: {member.name}: is neither a file nor a link")
                # The entry refuses a path that leads out of the folder; links are never made on disk.
                entry = Entry(path, member.size, member.mode, folder / path)
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                with content, (folder / path).open("wb") as file:
                    shutil.copyfileobj(content, file, CHUNK_BYTES)
                entries.append(entry)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(f"{archive}: the context is damaged: {error}") from error
    return BuildContext(entries)


def merge_logins(paths: Sequence[Path]) -> dict[str, Any]:
    """Return one docker config of several; the first that knows a registry counts."""
    auths: dict[str, Any] = {}
    for path in paths:
        for host, entry in (files.read_json(path).get("auths") or {}).items():
            auths.setdefault(host, entry)
    return {"auths": auths}


def read_registry(settings: Path, docker_config: Path) -> RegistryConfig:
    """Return how registries are reached, from the settings' folder."""
    written: Mapping[str, Any] = files.read_json(settings / REGISTRY_FILE)
    ca_file = settings / CA_FILE if written["own_ca"] else None
    arguments: dict[str, Any] = read_registry_settings(written)
    return RegistryConfig(**arguments, ca_file=ca_file, docker_config=docker_config)


def main(arguments: Sequence[str] | None = None) -> int:
    """Append, print progress as one JSON object a line, and leave the digest as the termination message."""
    parser = argparse.ArgumentParser(description="Append a context's sources to a base image.")
    parser.add_argument("--target", required=True, help="Repository and tag to push to.")
    parser.add_argument("--archive", required=True, type=Path, help="The context's tar.")
    parser.add_argument("--settings", type=Path, default=Path(SETTINGS_FOLDER), help="Folder of the settings.")
    parser.add_argument("--work", type=Path, default=Path(WORK_FOLDER), help="Folder that may be written to.")
    parser.add_argument("--termination", type=Path, default=Path(TERMINATION_FILE), help="Where the digest goes.")
    given = parser.parse_args(arguments)
    target = parse_reference(given.target, field="target")
    with tempfile.TemporaryDirectory(dir=given.work) as folder:
        try:
            logins = [Path(PUSH_FOLDER, LOGIN_FILE), *sorted(Path(PULL_FOLDER).glob(f"*/{LOGIN_FILE}"))]
            docker_config = Path(folder, LOGIN_FILE)
            content = json.dumps(merge_logins([path for path in logins if path.is_file()]))
            files.write_bytes(docker_config, content.encode(), mode=0o600)
            context = unpack_context(given.archive, Path(folder, SOURCES_FOLDER))
            plan = read_plan((given.settings / PLAN_FILE).read_text(), context)
            if plan.tag != target.tag:
                raise UserError(f"{given.archive}: its sources are not those of {target.tag}", hint="Build again.")
            builder = AppendBuilder(read_registry(given.settings, docker_config))
            result = builder.build(plan, target.name, on_progress=_print_progress)
        except KfpMindSporeError as error:
            print(f"Error: {error}", file=sys.stderr, flush=True)
            return error.exit_code
    # Not by a rename: the termination file is mounted.
    given.termination.write_text(result.digest)
    return 0


def _print_progress(progress: Progress) -> None:
    print(json.dumps(asdict(progress)), flush=True)


def _to_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


if __name__ == "__main__":
    sys.exit(main())
