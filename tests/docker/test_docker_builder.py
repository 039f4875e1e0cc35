"""DockerBuilder with a real daemon and a real registry."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from kfp_mindspore.errors import KfpMindSporeError, ProcessFailedError, UserError
from kfp_mindspore.images import ImageOptions, RegistryConfig, make_plan
from kfp_mindspore.images.sources.context import BuildContext
from kfp_mindspore.images.sources.entry import ContextEntry
from tests.docker.conftest import make_environment
from tests.support.remote import registries

DEADLINE_SECONDS = 120


def test_image_runs(environment, backend) -> None:
    builder = environment.make_builder()
    repository = f"run/{backend}"
    # No layer is one that another backend has pushed.
    made = f"echo in the step && echo {backend} > /made-by && id -u >> /made-by"
    options = {
        "main": f"echo from the sources of {backend}; id -u; cat /made-by",
        "containerfile": f"FROM {environment.base}\nRUN {made}\nWORKDIR /app\nCOPY sources/ /app/\n"
        'USER 1000:1000\nCMD ["sh", "main.sh"]\n',
    }
    result, seen = environment.build(builder, repository, **options)
    assert result.built
    assert result.layers_reused >= 1
    assert result.layers_sent >= 2
    assert any(entry.text == "in the step" for entry in seen)
    assert environment.registry.list_tags(repository) == [result.tag]
    printed = environment.run(result.reference).splitlines()
    assert printed == [f"from the sources of {backend}", "1000", backend, "0"]
    again, seen = environment.build(builder, repository, **options)
    assert (again.built, again.reference, again.layers_sent, seen) == (False, result.reference, 0, [])


def test_generated_containerfile_builds_and_skopeo_reads_image(environment, backend) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is missing: apt-get install skopeo")
    builder = environment.make_builder()
    repository = f"read/{backend}"
    result, _ = environment.build(builder, repository, "echo read", labels={"team": "vision"}, env={"A": "1 $B"})
    inspected = subprocess.run(
        ["skopeo", "inspect", "--tls-verify=false", f"docker://{environment.registry.host}/{repository}:{result.tag}"],
        capture_output=True,
        check=True,
    )
    found = json.loads(inspected.stdout)
    assert found["Digest"] == result.digest
    assert found["Labels"]["team"] == "vision"
    assert found["Labels"]["org.opencontainers.image.base.name"] == environment.base
    assert "A=1 $B" in found["Env"]
    assert environment.run(result.reference) == "read\n"


def test_search_paths_precede_those_of_base(environment, backend) -> None:
    builder = environment.make_builder()
    lines = [f"FROM {environment.base}", "ENV PATH=/cann/bin:/bin LD_LIBRARY_PATH=/cann/lib PYTHONPATH=/cann/python"]
    base, _ = environment.build(builder, f"cann/{backend}", containerfile="\n".join(lines) + "\n")
    env = {"PATH": "/app/bin", "LD_LIBRARY_PATH": "/app/lib"}
    result, _ = environment.build(builder, f"paths/{backend}", "env", base=base.reference, env=env)
    printed = set(environment.run(result.reference).splitlines())
    assert {"PATH=/app/bin:/cann/bin:/bin", "LD_LIBRARY_PATH=/app/lib:/cann/lib", "PYTHONPATH=/cann/python"} <= printed


def test_failing_step_is_named_with_its_last_lines_and_nothing_is_pushed(environment, backend) -> None:
    builder = environment.make_builder()
    containerfile = f"FROM {environment.base}\nRUN echo about to fail && false\n"
    with pytest.raises(ProcessFailedError, match="RUN echo about to fail && false") as caught:
        environment.build(builder, f"failed/{backend}", containerfile=containerfile)
    assert any("about to fail" in line for line in caught.value.log)
    assert environment.registry.list_tags(f"failed/{backend}") == []


def test_containerfile_error_is_reported(environment, backend) -> None:
    builder = environment.make_builder()
    with pytest.raises(KfpMindSporeError, match=r"(?i)unknown instruction: RUNN"):
        environment.build(builder, f"mistake/{backend}", containerfile=f"FROM {environment.base}\nRUNN true\n")


def test_secret_needs_buildx_and_is_not_in_image(environment, tmp_path, backend) -> None:
    (tmp_path / "token").write_text("open sesame")
    builder = environment.make_builder(secrets={"token": tmp_path / "token"})
    containerfile = (
        f"FROM {environment.base}\n"
        "RUN --mount=type=secret,id=token test \"$(cat /run/secrets/token)\" = 'open sesame'\n"
        'CMD ["sh", "-c", "cat /run/secrets/token || echo nothing there"]\n'
    )
    if backend == "legacy":
        with pytest.raises(UserError, match="legacy builder does not support them"):
            environment.build(builder, "secret/legacy", containerfile=containerfile)
        return
    result, seen = environment.build(builder, "secret/buildx", containerfile=containerfile)
    assert "nothing there" in environment.run(result.reference)
    assert not any("open sesame" in entry.text for entry in seen)


def test_base_image_of_daemon_only(environment, backend) -> None:
    environment.daemon.import_image("only-here", "1")
    builder = environment.make_builder()
    result, _ = environment.build(builder, f"local/{backend}", "echo over it", base="only-here:1")
    assert environment.run(result.reference) == "over it\n"


def test_killed_daemon_is_reported_and_second_build_succeeds(start_daemon, tmp_path, backend) -> None:
    daemon = start_daemon()
    with registries.start_registry(tmp_path / "registry") as registry:
        environment = make_environment(daemon, registry)
        builder = environment.make_builder()
        context = BuildContext([ContextEntry.from_bytes("main.sh", b"echo alive\n")])
        options = {"base": environment.base, "command": ("sh", "main.sh")}

        def make(step: str):
            text = f'FROM {environment.base}\nRUN {step}\nCOPY sources/ /\nCMD ["sh", "/main.sh"]\n'
            return make_plan(context, ImageOptions(**options, containerfile=text), builder)

        killer = threading.Thread(target=daemon.kill)

        def watch(progress) -> None:
            if progress.text == "sleeping" and not killer.ident:
                killer.start()

        with pytest.raises(KfpMindSporeError, match=r"closed the connection|does not respond"):
            builder.build(make("echo sleeping && sleep 600"), f"{registry.host}/killed/it", on_progress=watch)
        killer.join()
        assert registry.list_tags("killed/it") == []
        daemon.start()
        result = builder.build(make("echo short"), f"{registry.host}/killed/it")
        assert registry.list_tags("killed/it") == [result.tag]
        assert environment.run(result.reference) == "alive\n"


def test_interrupted_build_leaves_no_tag_no_file_and_no_container(environment, tmp_path, backend) -> None:
    (tmp_path / "main.sh").write_text("echo never\n")
    file = tmp_path / "Containerfile"
    step = f"sleep {600 + secrets.randbelow(10**6)}"
    file.write_text(f"FROM {environment.base}\nRUN echo sleeping && {step}\n")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    words = registries.list_build_words(tmp_path, environment.base, environment.registry.host, f"interrupted/{backend}")
    words += ["--builder", "docker", "--docker-host", environment.daemon.host]
    words += ["--network", "host", "--containerfile", str(file)]
    process = subprocess.Popen(
        words,
        env={**os.environ, "TMPDIR": str(temporary)},
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
    assert environment.registry.list_tags(f"interrupted/{backend}") == []
    assert list(temporary.iterdir()) == []
    client = environment.daemon.connect()
    deadline = time.monotonic() + DEADLINE_SECONDS
    # A step of BuildKit is no container of the daemon's, and buildx a process of its own.
    while running := [*client.containers(), *find_processes(step, f"interrupted/{backend}:")]:
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


def test_login_is_used_and_missing_one_is_reported(environment, tmp_path, backend) -> None:
    with registries.start_registry(tmp_path / "registry", htpasswd=True) as closed:
        logins = registries.write_login(tmp_path / "config.json", closed.host)
        allowed = RegistryConfig(insecure=(environment.registry.host, closed.host), docker_config=logins)
        context = BuildContext([ContextEntry.from_bytes("main.sh", b"echo in\n")])
        options = ImageOptions(base=environment.base, command=("sh", "main.sh"))
        builder = environment.make_builder(registry=allowed)
        result = builder.build(make_plan(context, options, builder), f"{closed.host}/team/in")
        assert closed.list_tags("team/in") == [result.tag]

        (tmp_path / "none.json").write_text("{}")
        refused = RegistryConfig(insecure=allowed.insecure, docker_config=tmp_path / "none.json")
        builder = environment.make_builder(registry=refused)
        plan = make_plan(context, ImageOptions(base=environment.base, command=("true",)), builder)
        with pytest.raises(UserError) as caught:
            builder.build(plan, f"{closed.host}/team/out")
        assert caught.value.exit_code == 2
        assert registries.PASSWORD not in str(caught.value)
        assert closed.list_tags("team/out") == []


def test_command_prints_digest_as_json(environment, tmp_path) -> None:
    (tmp_path / "main.py").write_text("print('hello')\n")
    words = registries.list_build_words(tmp_path, environment.base, environment.registry.host, "command/it")
    words += ["--builder", "docker", "--docker-host", environment.daemon.host, "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["reference"] == f"{environment.registry.host}/command/it@{result['digest']}"
    assert "Push layer" in done.stderr
