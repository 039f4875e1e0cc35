import sys
import time
from pathlib import Path

import pytest

from kfp_mindspore.errors import ProcessFailedError, UserError
from kfp_mindspore.images.builders import buildkit
from kfp_mindspore.images.builders.buildkit import get_buildx_command, read_plain_progress, run_buildx
from kfp_mindspore.images.builders.docker import DockerBuilder
from kfp_mindspore.local.process import ProcessIdentity

# As Docker 20.10 prints it; the last three lines repeat the failure.
FAILED = """\
#1 [internal] load build definition from Containerfile
#1 sha256:853a18df3052771491a511ed9cbeb253040b8bd14a23aaeea70024bd91ceddef
#1 transferring dockerfile: 184B done
#1 DONE 0.3s

#4 [2/5] RUN echo one
#4 sha256:e29fcd3d7133f788bd381d20fe68012da76d1ec2dd2d2346d55d0bab7737d557
#4 0.776 one
#4 DONE 3.2s

#8 [5/5] RUN false
#8 0.100 about to fail
#8 ERROR: executor failed running [/bin/sh -c false]: exit code: 1
------
 > [5/5] RUN false:
------
executor failed running [/bin/sh -c false]: exit code: 1
"""


def test_progress_has_steps_lines_and_first_failure() -> None:
    seen = []
    failure = read_plain_progress(FAILED.splitlines(), seen.append)
    assert failure is not None
    assert failure.message == "[5/5] RUN false: executor failed running [/bin/sh -c false]: exit code: 1"
    assert failure.log == ("about to fail",)
    assert [entry.step for entry in seen if not entry.text] == [
        "[internal] load build definition from Containerfile",
        "[2/5] RUN echo one",
        "[5/5] RUN false",
    ]
    assert [entry.text for entry in seen if entry.text] == ["one", "about to fail"]


def test_error_outside_of_steps_is_failure() -> None:
    failure = read_plain_progress(["ERROR: failed to solve: dockerfile parse error on line 2"], lambda _: None)
    assert failure is not None
    assert "parse error on line 2" in failure.message


def test_successful_build_has_no_failure() -> None:
    assert read_plain_progress(FAILED.splitlines()[:8], lambda _: None) is None


def test_command_line_without_buildx_has_no_command(tmp_path) -> None:
    assert get_buildx_command(str(tmp_path / "nosuch")) == []
    old = tmp_path / "docker"
    old.write_text("#!/bin/sh\necho 'docker: buildx is not a docker command' >&2; exit 1\n")
    old.chmod(0o755)
    assert get_buildx_command(str(old)) == []


def test_failed_command_is_reported(tmp_path) -> None:
    with (tmp_path / "context").open("w+b") as context, pytest.raises(ProcessFailedError, match="no space left"):
        run_buildx([sys.executable, "-c", "import sys; sys.exit('no space left')"], context, lambda _: None)


def test_missing_secret_file_is_named() -> None:
    with pytest.raises(UserError, match=r"secrets\[pip\]: /nosuch/pip.conf: no such file"):
        DockerBuilder(secrets={"pip": Path("/nosuch/pip.conf")})


def test_missing_daemon_is_reported_with_next_step(tmp_path) -> None:
    builder = DockerBuilder(host=f"unix://{tmp_path}/docker.sock")
    with pytest.raises(UserError, match="does not respond") as caught:
        builder.resolve_base("python:3.11", "linux/amd64")
    assert str(tmp_path) in caught.value.message
    assert caught.value.hint.startswith("Start it, name another with DOCKER_HOST")


def test_docker_config_keeps_users_plugins(tmp_path, monkeypatch) -> None:
    plugin = tmp_path / "own" / "cli-plugins" / "docker-buildx"
    plugin.parent.mkdir(parents=True)
    plugin.touch()
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "own"))
    logins = tmp_path / "logins.json"
    logins.write_text('{"auths": {}}')
    script = (
        "import os, pathlib, sys; folder = pathlib.Path(os.environ['DOCKER_CONFIG']); "
        "(folder / 'buildx').mkdir(); "
        "sys.exit((folder / 'config.json').read_text() + str(os.listdir(folder / 'cli-plugins')))"
    )
    with (tmp_path / "context.tar").open("wb+") as context, pytest.raises(ProcessFailedError) as caught:
        run_buildx([sys.executable, "-c", script], context, lambda _: None, docker_config=logins)
    assert caught.value.message == "build: {\"auths\": {}}['docker-buildx']"


@pytest.mark.parametrize("answers", [True, False])
def test_interrupt_terminates_plugin_too(tmp_path, monkeypatch, answers) -> None:
    """Docker's command line does not forward signals to its plugin."""
    monkeypatch.setattr(buildkit, "_GRACE_SECONDS", 0.5)
    plugin = tmp_path / "plugin.py"
    handler = "signal.default_int_handler" if answers else "signal.SIG_IGN"
    plugin.write_text(
        f"import os, signal, sys, time\nsignal.signal(signal.SIGINT, {handler})\n"
        "print(f'#1 [1/1] {os.getpid()}', file=sys.stderr, flush=True)\ntime.sleep(600)\n"
    )
    command = (
        "import signal, subprocess, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        f"sys.exit(subprocess.Popen([sys.executable, {str(plugin)!r}], restore_signals=True).wait())"
    )
    pids = []

    def interrupt(progress) -> None:
        pids.append(int(progress.step.split()[-1]))
        raise KeyboardInterrupt

    with (tmp_path / "context").open("w+b") as context, pytest.raises(KeyboardInterrupt):
        run_buildx([sys.executable, "-c", command], context, interrupt)
    assert wait_until_gone(pids[0])


def wait_until_gone(pid: int) -> bool:
    """Return whether a process that is no child of this one ends within 10 s."""
    for _ in range(1000):
        identity = ProcessIdentity.of(pid)
        if identity is None or not identity.is_alive():
            return True
        time.sleep(0.01)
    return False
