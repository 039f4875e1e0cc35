"""Images for builds on a cluster: one with BuildKit, and a small base image with busybox."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import stat
import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.infrastructure.binaries import BUILDKIT, get_binaries
from tests.cluster.infrastructure.commands import call
from tests.cluster.infrastructure.images import PYTHON, ImageConfig, get_images, unpack_archive, write_archive
from tests.cluster.infrastructure.paths import compute_digest, get_cache, lock, make_directory
from tests.cluster.infrastructure.prerequisites import UnavailableError

BUILDKIT_IMAGE = "kfp-mindspore.test/buildkit:1"
_BUILDKIT_PACKAGES = ("rootlesskit", "runc", "uidmap", "ca-certificates")
_USER, _HOME, _RUNTIME = "builder", "/home/builder", "/run/user/1000"
_STATE = f"{_HOME}/.local/share/buildkit"
# Part of the cached archive's name: change it with the content of the root file system.
_RECIPE = "1"
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DEVICES = {"null": 3, "zero": 5, "random": 8, "urandom": 9}
# Version 2 of a file's capabilities, effective; then the permitted and inherited ones in two halves.
_CAPABILITY_MAGIC = 0x02000001
_CAPABILITIES = {"newgidmap": 1 << 6, "newuidmap": 1 << 7}


def make_buildkit_archive() -> Path:
    """Return the archive of an image like `moby/buildkit:rootless`, over Debian; created once (half a minute).

    Raises:
        UnavailableError: BuildKit's binaries are not built yet.
    """
    binaries = get_binaries(BUILDKIT)
    name = f"buildkit-{compute_digest([], _RECIPE, binaries.name, *_BUILDKIT_PACKAGES)}"
    archive = get_cache() / "images" / f"{name}.tar"
    with lock(get_cache() / "images" / ".lock-buildkit"):
        if not archive.exists():
            with tempfile.TemporaryDirectory(dir=make_directory(archive.parent), prefix=f".{name}-") as folder:
                root = Path(folder, "root")
                unpack_archive(get_images()[PYTHON], root)
                _install(root, _BUILDKIT_PACKAGES)
                _allow_namespaces(root)
                _add_buildkit(root, binaries)
                variables = {"HOME": _HOME, "USER": _USER, "XDG_RUNTIME_DIR": _RUNTIME, "TMPDIR": f"{_HOME}/.local/tmp"}
                config = {
                    "Entrypoint": ["rootlesskit", "buildkitd"],
                    "User": "1000:1000",
                    "Volumes": {_STATE: {}},
                    "Env": [_PATH, *(f"{key}={value}" for key, value in variables.items())],
                }
                _write_archive(BUILDKIT_IMAGE, root, archive, config)
    return archive


def push_archive(archive: Path, target: str) -> None:
    """Push the image of an archive to a registry with plain HTTP."""
    if shutil.which("skopeo") is None:
        raise UnavailableError("skopeo is not installed: apt-get install skopeo")
    words = ["skopeo", "copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false"]
    call(*words, f"docker-archive:{archive}", f"docker://{target}", seconds=None)


def push_busybox(registry: str, folder: Path) -> str:
    """Push a base image of busybox alone and return its name."""
    if not Path("/bin/busybox").is_file():
        raise UnavailableError("busybox is not installed: apt-get install busybox-static")
    root = folder / "busybox"
    for name in ("bin", "etc", "tmp", "proc", "sys", "dev"):
        make_directory(root / name, 0o1777 if name == "tmp" else 0o755)
    shutil.copy("/bin/busybox", root / "bin" / "busybox")
    for name in ("sh", "cat", "echo", "id", "ln", "ls", "mkdir", "sleep", "true", "false", "touch"):
        (root / "bin" / name).symlink_to("busybox")
    (root / "etc" / "passwd").write_text("root:x:0:0::/:/bin/sh\n")
    name = f"{registry}/team/busybox:1"
    write_archive(name, root, folder / "busybox.tar", ImageConfig(command=["sh"]))
    push_archive(folder / "busybox.tar", name)
    return name


def _add_buildkit(root: Path, binaries: Path) -> None:
    for name in ("buildkitd", "buildctl", "buildctl-daemonless.sh"):
        shutil.copy(binaries / name, root / "usr" / "bin" / name)
    for name in (_RUNTIME, f"{_HOME}/.local/tmp", _STATE):
        make_directory(root / name.lstrip("/"))
    home = root / _HOME.lstrip("/")
    for path in [home, *home.rglob("*"), root / _RUNTIME.lstrip("/")]:
        os.chown(path, 1000, 1000)


def _install(root: Path, packages: Sequence[str]) -> None:
    """Install packages by the root file system's own apt."""
    shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
    for name in ("var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/log/apt"):
        make_directory(root / name)
    # The archive has no devices, which apt needs.
    for name, minor in _DEVICES.items():
        os.mknod(root / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(1, minor))
        (root / "dev" / name).chmod(0o666)
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LANG": "C.UTF-8"}
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    for words in (["update"], ["install", "--yes", "--no-install-recommends", *packages], ["clean"]):
        call("chroot", str(root), "apt-get", "--quiet", *words, seconds=None, environment={**environment, **proxies})
    shutil.rmtree(root / "var/lib/apt/lists")
    for name in _DEVICES:
        (root / "dev" / name).unlink()


def _allow_namespaces(root: Path) -> None:
    with (root / "etc" / "passwd").open("a") as file:
        file.write(f"{_USER}:x:1000:1000::/tmp:/bin/sh\n")
    for name in ("subuid", "subgid"):
        (root / "etc" / name).write_text(f"{_USER}:100000:65536\n")
    for name, capability in _CAPABILITIES.items():
        path = root / "usr" / "bin" / name
        path.chmod(0o755)
        os.setxattr(path, "security.capability", struct.pack("<5I", _CAPABILITY_MAGIC, capability, 0, 0, 0))


def _write_archive(tag: str, root: Path, archive: Path, config: Mapping[str, Any]) -> None:
    """Write a docker archive with file capabilities, which Python's tarfile does not support."""
    layer = root.with_name("layer.tar")
    words = ["tar", "--create", "--sort=name", "--numeric-owner", "--xattrs", "--xattrs-include=security.capability"]
    subprocess.run([*words, "--file", str(layer), "--directory", str(root), "."], check=True)
    digest = hashlib.sha256()
    with layer.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    settings = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": dict(config),
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest.hexdigest()}"]},
        }
    ).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]).encode()
    partial = root.with_name("image.tar")
    with tarfile.open(partial, "w") as tar:
        for name, content in (("config.json", settings), ("manifest.json", manifest)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        tar.add(layer, "layer.tar")
    partial.replace(archive)
