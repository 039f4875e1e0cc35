"""DockerBuilder with a real daemon and a real registry."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kfp_mindspore.errors import KfpMindSporeError, ProcessFailedError, UserError
from kfp_mindspore.images import BuildContext, Entry, ImageOptions, RegistryConfig, make_plan
from tests.docker.conftest import make_workshop
from tests.support import registries

DEADLINE_SECONDS = 120


def test_image_runs_and_prints_what_its_source_says(workshop, backend) -> None:
    builder = workshop.make_builder(backend.option)
    repository = f"run/{backend.name}"
    # No layer is one that another backend has pushed.
    made = f"echo in the step && echo {backend.name} > /made-by && id -u >> /made-by"
    options = {
        "main": f"echo from the sources of {backend.name}; id -u; cat /made-by",
        "containerfile": f"FROM {workshop.base}\nRUN {made}\nWORKDIR /app\nCOPY sources/ /app/\n"
        'USER 1000:1000\nCMD ["sh", "main.sh"]\n',
    }
    result, seen = workshop.build(builder, repository, **options)
    assert result.built
    assert result.layers_reused >= 1
    assert result.layers_sent >= 2
    assert any(entry.text == "in the step" for entry in seen)
    assert workshop.registry.list_tags(repository) == [result.tag]
    printed = workshop.run(result.reference).splitlines()
    assert printed == [f"from the sources of {backend.name}", "1000", backend.name, "0"]
    again, seen = workshop.build(builder, repository, **options)
    assert (again.built, again.reference, again.layers_sent, seen) == (False, result.reference, 0, [])


def test_generated_containerfile_builds_and_another_reader_sees_the_same_image(workshop, backend) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is missing: apt-get install skopeo")
    builder = workshop.make_builder(backend.option)
    repository = f"read/{backend.name}"
    result, _ = workshop.build(builder, repository, "echo read", labels={"team": "vision"}, env={"A": "1 $B"})
    inspected = subprocess.run(
        ["skopeo", "inspect", "--tls-verify=false", f"docker://{workshop.registry.host}/{repository}:{result.tag}"],
        capture_output=True,
        check=True,
    )
    found = json.loads(inspected.stdout)
    assert found["Digest"] == result.digest
    assert found["Labels"]["team"] == "vision"
    assert found["Labels"]["org.opencontainers.image.base.name"] == workshop.base
    assert "A=1 $B" in found["Env"]
    assert workshop.run(result.reference) == "read\n"


def test_failing_step_is_named_with_its_last_lines_and_nothing_is_pushed(workshop, backend) -> None:
    builder = workshop.make_builder(backend.option)
    containerfile = f"FROM {workshop.base}\nRUN echo about to fail && false\n"
    with pytest.raises(ProcessFailedError, match="RUN echo about to fail && false") as caught:
        workshop.build(builder, f"failed/{backend.name}", containerfile=containerfile)
    assert any("about to fail" in line for line in caught.value.log)
    assert workshop.registry.list_tags(f"failed/{backend.name}") == []


def test_containerfile_with_a_mistake_is_a_mistake_of_the_user(workshop, backend) -> None:
    builder = workshop.make_builder(backend.option)
    with pytest.raises(KfpMindSporeError, match=r"(?i)unknown instruction: RUNN"):
        workshop.build(builder, f"mistake/{backend.name}", containerfile=f"FROM {workshop.base}\nRUNN true\n")


def test_secret_is_used_by_buildkit_and_refused_by_the_legacy_builder(workshop, tmp_path) -> None:
    (tmp_path / "token").write_text("open sesame")
    builder = workshop.make_builder("buildkit", secrets={"token": tmp_path / "token"})
    result, seen = workshop.build(
        builder,
        "secret/buildkit",
        containerfile=f"FROM {workshop.base}\nRUN --mount=type=secret,id=token "
        "test \"$(cat /run/secrets/token)\" = 'open sesame'\n"
        'CMD ["sh", "-c", "cat /run/secrets/token || echo nothing there"]\n',
    )
    assert "nothing there" in workshop.run(result.reference)
    assert not any("open sesame" in entry.text for entry in seen)
    with pytest.raises(UserError, match="the legacy builder has none"):
        workshop.build(workshop.make_builder("legacy", secrets={"token": tmp_path / "token"}), "secret/legacy")


def test_base_that_only_the_daemon_has(workshop, backend) -> None:
    workshop.daemon.import_image("only-here", "1")
    builder = workshop.make_builder(backend.option)
    result, _ = workshop.build(builder, f"local/{backend.name}", "echo over it", base="only-here:1")
    assert workshop.run(result.reference) == "over it\n"


def test_daemon_that_dies_in_a_step_is_told_and_a_second_run_succeeds(start_daemon, tmp_path, backend) -> None:
    daemon = start_daemon()
    with registries.start_registry(tmp_path / "registry") as registry:
        workshop = make_workshop(daemon, registry)
        builder = workshop.make_builder(backend.option)
        context = BuildContext([Entry.from_bytes("main.sh", b"echo alive\n")])
        options = {"base": workshop.base, "command": ("sh", "main.sh")}

        def make(step: str):
            text = f'FROM {workshop.base}\nRUN {step}\nCOPY sources/ /\nCMD ["sh", "/main.sh"]\n'
            return make_plan(context, ImageOptions(**options, containerfile=text), builder)

        killer = threading.Thread(target=daemon.kill)

        def watch(progress) -> None:
            if progress.text == "sleeping" and not killer.ident:
                killer.start()

        with pytest.raises(KfpMindSporeError, match=r"hung up|does not answer"):
            builder.build(make("echo sleeping && sleep 600"), f"{registry.host}/killed/it", on_progress=watch)
        killer.join()
        assert registry.list_tags("killed/it") == []
        daemon.start()
        result = builder.build(make("echo short"), f"{registry.host}/killed/it")
        assert registry.list_tags("killed/it") == [result.tag]
        assert workshop.run(result.reference) == "alive\n"


def test_interrupted_build_leaves_no_tag_no_file_and_no_container(workshop, tmp_path, backend) -> None:
    if backend.option == "buildkit":
        workshop.make_builder(backend.option)
    (tmp_path / "main.sh").write_text("echo never\n")
    file = tmp_path / "Containerfile"
    step = f"sleep {600 + secrets.randbelow(10**6)}"
    file.write_text(f"FROM {workshop.base}\nRUN echo sleeping && {step}\n")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    words = [sys.executable, "-m", "kfp_mindspore.cli.main", "image", "build", str(tmp_path), "--base", workshop.base]
    words += ["--to", f"{workshop.registry.host}/interrupted/{backend.name}", "--insecure", workshop.registry.host]
    words += ["--builder", "docker", "--docker-host", workshop.daemon.host, "--docker-backend", backend.option]
    words += ["--network", "host", "--containerfile", str(file)]
    folders = os.pathsep.join(["/usr/bin", os.environ["PATH"]])
    process = subprocess.Popen(
        words,
        env={**os.environ, "TMPDIR": str(temporary), "PATH": folders},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.strip() == "sleeping":
            process.send_signal(signal.SIGINT)
            break
    rest = process.stderr.read()
    assert process.wait(DEADLINE_SECONDS) == 130, "".join(lines) + rest
    assert "Traceback" not in rest
    assert workshop.registry.list_tags(f"interrupted/{backend.name}") == []
    assert list(temporary.iterdir()) == []
    client = workshop.daemon.connect()
    deadline = time.monotonic() + DEADLINE_SECONDS
    # A step of BuildKit is no container of the daemon's, and buildx a process of its own.
    while running := [*client.containers(), *find_processes(step, f"interrupted/{backend.name}:")]:
        assert time.monotonic() < deadline, running
        time.sleep(0.2)


def find_processes(*texts: str) -> list[str]:
    """Return the command lines of this machine's processes that have one of these texts, its containers' among them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if any(text in words for text in texts):
                found.append(words)
    return found


def test_refused_login_names_the_next_step_and_a_right_one_pushes(workshop, tmp_path, backend) -> None:
    with registries.start_registry(tmp_path / "registry", htpasswd=True) as closed:
        builder_of = workshop.make_builder
        logins = registries.write_login(tmp_path / "config.json", closed.host)
        allowed = RegistryConfig(insecure=(workshop.registry.host, closed.host), docker_config=logins)
        context = BuildContext([Entry.from_bytes("main.sh", b"echo in\n")])
        options = ImageOptions(base=workshop.base, command=("sh", "main.sh"))
        builder = builder_of(backend.option, registry=allowed)
        result = builder.build(make_plan(context, options, builder), f"{closed.host}/team/in")
        assert closed.list_tags("team/in") == [result.tag]

        (tmp_path / "none.json").write_text("{}")
        refused = RegistryConfig(insecure=allowed.insecure, docker_config=tmp_path / "none.json")
        builder = builder_of(backend.option, registry=refused)
        plan = make_plan(context, ImageOptions(base=workshop.base, command=("true",)), builder)
        with pytest.raises(UserError) as caught:
            builder.build(plan, f"{closed.host}/team/out")
        assert caught.value.exit_code == 2
        assert registries.PASSWORD not in str(caught.value)
        assert closed.list_tags("team/out") == []


def test_command_prints_the_digest_as_json(workshop, tmp_path) -> None:
    (tmp_path / "main.py").write_text("print('hello')\n")
    words = [sys.executable, "-m", "kfp_mindspore.cli.main", "image", "build", str(tmp_path), "--base", workshop.base]
    words += ["--to", f"{workshop.registry.host}/command/it", "--insecure", workshop.registry.host, "--json"]
    words += ["--builder", "docker", "--docker-host", workshop.daemon.host, "--docker-backend", "legacy"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["reference"] == f"{workshop.registry.host}/command/it@{result['digest']}"
    assert "Push layer" in done.stderr
