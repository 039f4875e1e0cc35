"""The runtime image, built by a real daemon over Debian's Python and run as a cluster would run it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kfp_mindspore.images.runtime.wheel import read_wheel
from tests.cluster.infrastructure.images import build_archive
from tests.cluster.infrastructure.prerequisites import UnavailableError
from tests.docker.conftest import skip

PACKAGES = ("ca-certificates", "libgomp1", "python3", "python3-venv")
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
LOOK = """
import importlib.util, json, os, struct
import kfp_mindspore
from kfp_mindspore.kube.cluster import Cluster

try:
    open("/opt/venv/written", "w")
    writes = True
except OSError:
    writes = False
with open(importlib.util.cache_from_source(kfp_mindspore.__file__), "rb") as file:
    flags = struct.unpack("<I", file.read(8)[4:])[0]
print(json.dumps({"uid": os.getuid(), "writes": writes, "flags": flags, "version": kfp_mindspore.__version__,
                  "paths": [os.environ["PATH"], os.environ["LD_LIBRARY_PATH"]]}))
"""


@pytest.fixture(scope="session")
def python_base(environment, tmp_path_factory) -> str:
    """Push an image of Debian's Python that trusts what this machine trusts, and return its name."""
    name = "kfp-mindspore.test/python-venv:3.11"
    try:
        archive = build_archive(name, PACKAGES, ["python3"])
    except UnavailableError as error:
        skip(str(error))
    client = environment.daemon.connect()
    with archive.open("rb") as file:
        for _ in client.load_image(file):
            pass
    folder = tmp_path_factory.mktemp("base")
    lines = [f"FROM {name}", "ENV PATH=/cann/bin:/usr/bin:/bin LD_LIBRARY_PATH=/cann/lib"]
    if AUTHORITIES.is_file():
        shutil.copy(AUTHORITIES, folder / "authorities.crt")
        (folder / "pip.conf").write_text(f"[global]\ncert = {AUTHORITIES}\n")
        lines += [f"COPY authorities.crt {AUTHORITIES}", "COPY pip.conf /etc/pip.conf"]
    (folder / "Dockerfile").write_text("\n".join(lines) + "\n")
    base = f"{environment.registry.host}/team/python:3.11"
    for message in client.build(path=str(folder), tag=base, decode=True):
        assert "error" not in message, message
    environment.daemon.push(*base.rsplit(":", 1))
    return base


# Debian's Python is made once (two minutes), and pip installs from an index.
@pytest.mark.timeout(1800)
def test_runtime_image_runs_unprivileged_with_read_only_root(environment, buildx_config, python_base, tmp_path) -> None:
    # Once: the working tree may change while it is built.
    name, content = read_wheel()
    (tmp_path / name).write_bytes(content)
    words = [sys.executable, "-m", "kfp_mindspore.cli.main", "image", "runtime", "--base", python_base, "--json"]
    words += ["--to", f"{environment.registry.host}/team/runtime", "--insecure", environment.registry.host]
    words += ["--docker-host", environment.daemon.host, "--network", "host", "--extra", "kubernetes"]
    words += ["--wheel", str(tmp_path / name)]
    # The build needs the pip configuration of the machine to reach an index.
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST"):
        if os.environ.get(name):
            words += ["--build-arg", f"{name}={os.environ[name]}"]
    variables = {**os.environ, "DOCKER_CONFIG": str(buildx_config)}
    done = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads(done.stdout)
    assert result["built"] is True

    client = environment.daemon.connect()
    settings = client.create_host_config(
        network_mode="none", read_only=True, tmpfs={"/tmp": ""}, cap_drop=["ALL"], security_opt=["no-new-privileges"]
    )
    client.pull(result["reference"])
    container = client.create_container(result["reference"], command=["python3", "-c", LOOK], host_config=settings)
    client.start(container)
    code = client.wait(container)["StatusCode"]
    printed = client.logs(container).decode()
    client.remove_container(container, force=True)
    assert code == 0, printed
    seen = json.loads(printed.splitlines()[-1])
    # Flag 1 alone: byte code by hash, whose source is never checked.
    assert (seen["uid"], seen["writes"], seen["flags"]) == (1000, False, 1)
    assert seen["paths"] == ["/opt/venv/bin:/cann/bin:/usr/bin:/bin", "/cann/lib:/opt/venv/lib"]

    again = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr[-4000:]
    answer = json.loads(again.stdout)
    assert (answer["built"], answer["reference"]) == (False, result["reference"])
