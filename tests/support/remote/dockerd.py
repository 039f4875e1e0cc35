"""A Docker daemon of the tests: with a socket and data of its own, without a bridge and iptables rules."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

START_SECONDS = 60
_NAMES = ("sh", "cat", "echo", "id", "ls", "mkdir", "sleep", "true", "false", "touch", "wc", "head", "test")


def find_missing() -> str:
    """Return why this machine cannot start a daemon, or an empty string."""
    if os.geteuid() != 0:
        return "a Docker daemon of its own needs root"
    for program, package in (("dockerd", "docker.io"), ("docker-registry", "docker-registry")):
        if shutil.which(program) is None:
            return f"{program} is missing: apt-get install {package}"
    if not Path("/bin/busybox").is_file():
        return "/bin/busybox is missing: apt-get install busybox-static"
    return ""


class DockerDaemon:
    """A dockerd that this process owns.

    Args:
        root: Folder of its data, socket and log, on a file system that supports overlayfs.
        insecure: Registries that use plain HTTP; loopback addresses are included.
    """

    def __init__(self, root: Path, insecure: tuple[str, ...] = ()) -> None:
        self.root = root
        self.host = f"unix://{root}/docker.sock"
        self.log = root / "dockerd.log"
        self._insecure = insecure
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it responds."""
        self.root.mkdir(parents=True, exist_ok=True)
        words = ["dockerd", "--data-root", f"{self.root}/data", "--exec-root", f"{self.root}/run"]
        words += ["--pidfile", f"{self.root}/docker.pid", "--host", self.host]
        words += ["--bridge", "none", "--iptables=false", "--ip6tables=false"]
        words += ["--config-file", f"{self.root}/daemon.json"]
        (self.root / "daemon.json").write_text("{}")
        for host in self._insecure:
            words += ["--insecure-registry", host]
        # After a kill both name processes that may not be reaped yet.
        for name in ("docker.pid", "run/containerd/containerd.pid"):
            (self.root / name).unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + START_SECONDS
        while not self._responds():
            assert self._process.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < end, f"dockerd did not respond: {self.log.read_text()[-2000:]}"
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill it and all its children, as after a power failure."""
        process = self._process
        if process is None:
            return
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._process = None
        for pid in self._list_children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Terminate it and delete its data."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None
        for pid in self._list_children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((mount for mount in mounts if mount.startswith(f"{self.root}/")), reverse=True):
            subprocess.run(["umount", "--lazy", mount], check=False)
        shutil.rmtree(self.root, ignore_errors=True)

    def import_image(self, repository: str, tag: str) -> None:
        """Import an image of busybox."""
        self.connect().import_image_from_data(make_busybox_root(), repository=repository, tag=tag)

    def push(self, repository: str, tag: str) -> None:
        """Push an image."""
        for message in self.connect().push(repository, tag=tag, stream=True, decode=True):
            assert "error" not in message, message

    def connect(self) -> Any:
        """Return the docker SDK's low-level client."""
        import docker

        return docker.APIClient(base_url=self.host, version="auto", timeout=120)

    def _responds(self) -> bool:
        import docker

        try:
            return bool(self.connect().ping())
        except (docker.errors.DockerException, OSError):
            return False

    def _list_children(self) -> list[int]:
        """Return the pids of containerd and its shims, by their command lines."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if f"{self.root}/".encode() in command and int(folder.name) != os.getpid():
                words = command.split(b"\0")
                if Path(os.fsdecode(words[0])).name.startswith(("containerd", "dockerd", "runc")):
                    found.append(int(folder.name))
        return found


def make_busybox_root() -> bytes:
    """Return the tar of a root file system: busybox with its usual names."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder in ("bin", "etc", "tmp"):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(info)
        tar.add("/bin/busybox", "bin/busybox")
        for name in _NAMES:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        info = tarfile.TarInfo("etc/passwd")
        content = b"root:x:0:0::/:/bin/sh\n"
        info.size, info.mode = len(content), 0o644
        tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
