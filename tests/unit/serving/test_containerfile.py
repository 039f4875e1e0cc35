"""serving/Containerfile by its text: the image is built elsewhere."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kfp_mindspore.images.runtime.image import BASE_TESTS, BASES
from tests.support.remote import base_images

ROOT = Path(__file__).parents[3]
CONTAINERFILE = ROOT / "serving" / "Containerfile"
IGNORE = ROOT / ".containerignore"


def read_instructions() -> list[tuple[str, str]]:
    """Return instruction and argument, continued lines joined."""
    lines = [line for line in CONTAINERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in text.splitlines()) if word]


def read_last_stage() -> list[tuple[str, str]]:
    instructions = read_instructions()
    start = max(index for index, (word, _) in enumerate(instructions) if word == "FROM")
    return instructions[start:]


def is_ignored(path: str) -> bool:
    ignored = False
    for line in IGNORE.read_text().splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        kept, pattern = pattern.startswith("!"), pattern.removeprefix("!")
        parts = Path(path).parts
        prefixes = ["/".join(parts[: end + 1]) for end in range(len(parts))]
        if pattern.startswith("**/"):
            matches = any(fnmatch.fnmatch(part, pattern[3:]) for part in parts)
        else:
            matches = any(fnmatch.fnmatch(prefix, pattern) for prefix in prefixes)
        if matches:
            ignored = not kept
    return ignored


def test_stage_of_steps_has_environment_and_no_entrypoint() -> None:
    instructions = read_instructions()
    start = instructions.index(("FROM", "${BASE} AS steps"))
    end = next(index for index in range(start + 1, len(instructions)) if instructions[index][0] == "FROM")
    stage = dict(instructions[start:end])
    assert stage["COPY"] == "--from=build /opt/venv /opt/venv"
    assert stage["USER"] == "1000:0"
    # KFP and MSJobs set the command; PYTHONSAFEPATH would hide `python -m train` in the working directory.
    assert "ENTRYPOINT" not in stage
    assert "PYTHONSAFEPATH" not in stage["ENV"]


@pytest.mark.parametrize("stage", ["steps", "server"])
def test_base_keeps_its_search_paths(stage: str) -> None:
    text = CONTAINERFILE.read_text()
    if stage == "steps":
        text = text.rpartition("\nFROM ")[0]
    assert base_images.evaluate_env(text, base_images.CANN_PATHS) == {
        "PATH": "/opt/venv/bin:/usr/local/Ascend/bin:/usr/bin:/bin",
        "LD_LIBRARY_PATH": "/usr/local/Ascend/lib64:/opt/venv/lib",
        "PYTHONPATH": "/usr/local/Ascend/python",
    }


def test_last_stage_runs_no_command() -> None:
    # So its base needs no shell, and nothing but the copied environment is added to it.
    words = [word for word, _ in read_last_stage()]
    assert "RUN" not in words
    assert words.count("COPY") == 1


def test_it_starts_server_without_shell() -> None:
    stage = dict(read_last_stage())
    assert json.loads(stage["ENTRYPOINT"]) == ["python", "-m", "mindsporeserver"]
    assert stage["HEALTHCHECK"] == "NONE"


def test_its_user_is_number_and_not_root() -> None:
    # With a name instead, `runAsNonRoot: true` refuses the image.
    uid, _, gid = dict(read_last_stage())["USER"].partition(":")
    assert int(uid) > 0
    assert gid == "0"


def test_byte_code_is_compiled_once_and_never_written() -> None:
    text = CONTAINERFILE.read_text()
    assert "--invalidation-mode unchecked-hash" in text
    assert "PYTHONDONTWRITEBYTECODE=1" in dict(read_last_stage())["ENV"]


def test_everything_installed_is_pinned() -> None:
    installs = [rest for word, rest in read_instructions() if word == "RUN" and "pip" in rest and " install " in rest]
    assert installs
    assert all("--constraint constraints.txt" in install for install in installs if "apt-get" not in install)


def test_bases_are_arguments() -> None:
    instructions = read_instructions()
    assert [rest.split()[0] for word, rest in instructions if word == "FROM"] == ["${BUILD_BASE}", "${BASE}", "${BASE}"]
    names = [rest.partition("=")[0] for word, rest in instructions if word == "ARG"]
    assert {"BASE", "BUILD_BASE", "EXTRAS", "DEVICE"} <= set(names)


def list_copied() -> list[str]:
    return [
        source
        for word, rest in read_instructions()
        if word == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    ]


def test_copied_files_exist_and_are_not_ignored() -> None:
    sources = list_copied()
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert not is_ignored(source), source


def test_links_of_package_lead_to_copied_files() -> None:
    links = [path for path in (ROOT / "kfp_mindspore").rglob("*") if path.is_symlink()]
    assert links
    for link in links:
        target = link.resolve().relative_to(ROOT)
        assert any(target.is_relative_to(source) for source in list_copied()), f"{link} leads to {target}"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".git/config", True),
        (".venv/bin/python", True),
        ("docs/serving.md", True),
        ("tests/faults/conftest.py", True),
        ("components/training/export_mindir/tests/test_component_unit.py", True),
        ("kfp_mindspore/__pycache__/files.pyc", True),
        ("kfp_mindspore/files.py", False),
        ("serving/mindsporeserver/tls.py", False),
        ("components/training/export_mindir/component.yaml", False),
    ],
)
def test_files_of_build_context(path: str, expected: bool) -> None:
    assert is_ignored(path) is expected


def test_docker_reads_same_list() -> None:
    assert (ROOT / ".dockerignore").read_text() == IGNORE.read_text()


@pytest.mark.parametrize(
    ("device", "code", "message"),
    [
        ("cpu", 0, ""),
        ("all", 0, ""),
        ("gpu", 1, f"device gpu: the base needs {BASES['gpu']}\n"),
        ("ascend", 1, f"device ascend: the base needs {BASES['ascend']}\n"),
        ("GPU", 1, "DEVICE: must be cpu, gpu, ascend or all, got GPU\n"),
    ],
)
def test_base_without_libraries_ends_build_first(device: str, code: int, message: str) -> None:
    test = next(rest for word, rest in read_instructions() if word == "RUN")
    assert all(command in test for command in BASE_TESTS.values())
    environment = {"PATH": os.environ["PATH"], "DEVICE": device}
    done = subprocess.run(["sh", "-c", test], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, message)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(("extras", "is_built"), [("serving", False), ("serving,lm", True)])
def test_operator_of_language_models_is_in_image(extras: str, is_built: bool, tmp_path: Path) -> None:
    command = next(rest for word, rest in read_instructions() if word == "RUN" and "decode_library" in rest)
    ignored = shutil.ignore_patterns("__pycache__", "operators")
    shutil.copytree(ROOT / "kfp_mindspore", tmp_path / "kfp_mindspore", symlinks=True, ignore=ignored)
    environment = {"PATH": os.environ["PATH"], "EXTRAS": extras, "PYTHONPATH": str(tmp_path)}
    subprocess.run(["sh", "-c", command.replace("/opt/venv/bin/python", sys.executable)], env=environment, check=True)
    # Byte code with times would be kept.
    assert not list(tmp_path.rglob("*.pyc"))
    look = "from kfp_mindspore.lm.network.decode_library import compile_library; print(compile_library())"
    environment |= {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    # From here the copied package is imported, not the checkout's.
    words = [sys.executable, "-c", look]
    found = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    operators = tmp_path / "kfp_mindspore" / "lm" / "network" / "operators"
    assert (Path(found.stdout.strip()).parent == operators) == is_built
