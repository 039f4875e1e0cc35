"""The commands that a build's pod runs: Buildah, BuildKit without a daemon, or the append builder."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from kfp_mindspore.images.builders.cluster_layout import (
    BUILDKITD_FILE,
    CA_FILE,
    LOGIN_FILE,
    PULL_FOLDER,
    PUSH_FOLDER,
    REGISTRIES_CONF_FILE,
    SECRETS_FOLDER,
    SETTINGS_FOLDER,
    TERMINATION_FILE,
    WORK_FOLDER,
)
from kfp_mindspore.images.containerfile import CONTAINERFILE_FILE
from kfp_mindspore.images.plan import ImagePlan

APPEND_MODULE = "kfp_mindspore.images.builders.cluster_append"
_SOURCE = f"{WORK_FOLDER}/context"


def write_buildah_script(
    plan: ImagePlan,
    target: str,
    archive: str,
    *,
    labels: Mapping[str, str],
    build_args: Mapping[str, str],
    secrets: Sequence[str],
    pulls: int,
    pushes: bool,
    own_ca: bool,
    storage_driver: str,
) -> str:
    """Return the shell script that builds with Buildah in a chroot, pushes and leaves the digest.

    Args:
        plan: What is built.
        target: Repository and tag.
        archive: The context's tar in the pod.
        labels: Labels of the image.
        build_args: Values of ARG lines.
        secrets: Names of the build's secrets, mounted below SECRETS_FOLDER.
        pulls: How many logins for pulling are mounted.
        pushes: Whether a login for pushing is mounted.
        own_ca: Whether an authority is mounted.
        storage_driver: Of containers/storage: `vfs` works everywhere, `overlay` needs /dev/fuse.
    """
    buildah = ["buildah", "--storage-driver", storage_driver]
    buildah += ["--root", f"{WORK_FOLDER}/storage", "--runroot", f"{WORK_FOLDER}/run"]
    trust = ["--cert-dir", f"{WORK_FOLDER}/certificates"] if own_ca else []
    login = ["--authfile", f"{PUSH_FOLDER}/{LOGIN_FILE}"] if pushes else []
    build = [*buildah, "build", "--isolation", "chroot", "--layers=false", "--pull=missing", *trust, *login]
    build += ["--timestamp", str(plan.created), "--platform", plan.platform]
    build += _repeat("--label", labels) + _repeat("--build-arg", build_args)
    for name in secrets:
        build += ["--secret", f"id={name},src={SECRETS_FOLDER}/{name}"]
    build += ["--file", f"{_SOURCE}/{CONTAINERFILE_FILE}", "--tag", target, _SOURCE]
    push = [*buildah, "push", *trust, *login, "--digestfile", f"{WORK_FOLDER}/digest", target]
    lines = [
        "set -eu",
        # The volume itself belongs to root, and Buildah wants a folder of its own.
        f"mkdir -p -m 0700 {WORK_FOLDER}/home",
        f"export HOME={WORK_FOLDER}/home TMPDIR={WORK_FOLDER}/home XDG_RUNTIME_DIR={WORK_FOLDER}/home",
        f"export CONTAINERS_REGISTRIES_CONF={SETTINGS_FOLDER}/{REGISTRIES_CONF_FILE}",
        *_unpack(archive),
    ]
    if own_ca:
        # A ConfigMap is a folder of links, of which Buildah would take more than certificates.
        lines += [
            f"mkdir -p {WORK_FOLDER}/certificates",
            f"cp {SETTINGS_FOLDER}/{CA_FILE} {WORK_FOLDER}/certificates/{CA_FILE}",
        ]
    base = f"{plan.base.partition('@')[0]}@{plan.base_digest}"
    for index in range(pulls):
        pull = [*buildah, "pull", *trust, "--authfile", f"{PULL_FOLDER}/{index}/{LOGIN_FILE}", base]
        # Which of several logins is the base's is for the registry to say.
        lines.append(f"{shlex.join(pull)} || true")
    lines += [shlex.join(build), shlex.join(push), f"cat {WORK_FOLDER}/digest > {TERMINATION_FILE}"]
    return "\n".join(lines) + "\n"


def write_buildkit_script(
    plan: ImagePlan,
    target: str,
    archive: str,
    *,
    labels: Mapping[str, str],
    build_args: Mapping[str, str],
    secrets: Sequence[str],
    pushes: bool,
) -> str:
    """Return the shell script that builds with BuildKit without root, pushes and leaves the digest.

    Arguments are those of `write_buildah_script`.
    """
    options = {"filename": CONTAINERFILE_FILE, "platform": plan.platform}
    options |= {f"label:{key}": value for key, value in labels.items()}
    options |= {"build-arg:SOURCE_DATE_EPOCH": str(plan.created)}
    options |= {f"build-arg:{key}": value for key, value in build_args.items()}
    build = ["buildctl-daemonless.sh", "build", "--progress", "plain", "--frontend", "dockerfile.v0"]
    build += ["--local", f"context={_SOURCE}", "--local", f"dockerfile={_SOURCE}"]
    build += _repeat("--opt", options)
    for name in secrets:
        build += ["--secret", f"id={name},src={SECRETS_FOLDER}/{name}"]
    build += ["--output", f"type=image,name={target},push=true,rewrite-timestamp=true"]
    build += ["--metadata-file", f"{WORK_FOLDER}/metadata.json"]
    flags = f"--root {WORK_FOLDER}/buildkit --oci-worker-no-process-sandbox --config {SETTINGS_FOLDER}/{BUILDKITD_FILE}"
    lines = ["set -eu", f"export BUILDKITD_FLAGS={shlex.quote(flags)} TMPDIR={WORK_FOLDER}"]
    if pushes:
        lines.append(f"export DOCKER_CONFIG={PUSH_FOLDER}")
    # The metadata are longer than a termination message may be; the digest is on a line of its own when it is cut.
    find = f"tr ',{{}}' '\\n\\n\\n' < {WORK_FOLDER}/metadata.json | grep '\"containerimage.digest\"'"
    lines += [*_unpack(archive), shlex.join(build), f"{find} | grep -o 'sha256:[0-9a-f]*' > {TERMINATION_FILE}"]
    return "\n".join(lines) + "\n"


def write_append_command(target: str, archive: str) -> list[str]:
    """Return the command that appends the sources to the base image with this package alone."""
    return ["python3", "-m", APPEND_MODULE, "--target", target, "--archive", archive]


def _unpack(archive: str) -> list[str]:
    flags = "-xzf" if archive.endswith(".gz") else "-xf"
    return [f"mkdir -p {_SOURCE}", f"tar {flags} {shlex.quote(archive)} -C {_SOURCE}"]


def _repeat(option: str, pairs: Mapping[str, str]) -> list[str]:
    return [word for key, value in sorted(pairs.items()) for word in (option, f"{key}={value}")]
