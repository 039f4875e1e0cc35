import io
import json

import pytest

from kfp_mindspore.cli.image.progress import BuildDisplay
from kfp_mindspore.cli.main import run
from kfp_mindspore.images import RegistryConfig
from kfp_mindspore.images.progress import BuildProgress
from tests.support.remote import base_images, registries

# Nothing listens on this port: a request would end with exit code 1.
NOWHERE = ("build", "{script}", "--base", "localhost:1/base", "--dry-run")
ON_CLUSTER = [*NOWHERE, "--builder", "cluster"]


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    registries.require_binary()
    with registries.start_registry(tmp_path_factory.mktemp("registry")) as started:
        yield started


@pytest.fixture
def base(registry, tmp_path, monkeypatch) -> str:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.delenv("KFP_MINDSPORE_IMAGE", raising=False)
    return base_images.push_base(registry.host, config=RegistryConfig(insecure=(registry.host,)))


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("print('trained')\n")
    return file


def test_build_pushes_once(script, base, registry, capsys) -> None:
    words = ["image", "build", str(script), "--base", base, "--insecure", registry.host]
    words += ["--to", f"{registry.host}/cli/train", "--label", "team=x", "--env", "A=1"]
    assert run([*words, "--json"]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert result["built"] is True
    assert registry.list_tags("cli/train") == [result["tag"]]
    assert "Push layer" in printed.err
    assert run(words) == 0
    assert "exists already, nothing was sent" in capsys.readouterr().out

    assert run(["image", "inspect", result["reference"], "--insecure", registry.host, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["labels"]["team"] == "x"
    assert "A=1" in found["env"]
    assert run(["image", "inspect", result["reference"], "--insecure", registry.host]) == 0
    shown = capsys.readouterr().out
    assert "user: 1000:1000" in shown
    assert "command: python3 train.py" in shown
    assert "  team=x" in shown


def test_dry_run_prints_plan_and_pushes_nothing(script, base, registry, capsys) -> None:
    words = ["image", "build", str(script), "--base", base, "--insecure", registry.host, "--dry-run"]
    assert run([*words, "--to", f"{registry.host}/cli/dry"]) == 0
    shown = capsys.readouterr().out
    assert "train.py" in shown
    assert f"FROM {base}@sha256:" in shown
    assert run([*words, "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["files"] == [{"path": "train.py", "mode": "0644", "size": 17}]
    assert registry.list_tags("cli/dry") == []


@pytest.mark.parametrize("name", ["folder", "notebook", "function"])
def test_notebooks_scripts_and_functions_are_built(name, base, registry, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "one.py").write_text("def train():\n    print(1)\n")
    cell = {"cell_type": "code", "metadata": {"tags": ["image"]}, "source": "print(2)", "outputs": []}
    cell["execution_count"] = None
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    (tmp_path / "lenet.ipynb").write_text(json.dumps(notebook))
    monkeypatch.chdir(tmp_path)
    source = {"folder": "package", "notebook": "lenet.ipynb", "function": "package.one:train"}[name]
    words = ["image", "build", source, "--base", base, "--insecure", registry.host, "--dry-run", "--json"]
    assert run(words) == 0
    files = {entry["path"] for entry in json.loads(capsys.readouterr().out)["files"]}
    expected = {"folder": "one.py", "notebook": "lenet.py", "function": "package/one.py"}[name]
    assert expected in files


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["build", "{script}", "--base", "b"], "--to: is missing"),
        (["build", "nosuch", "--base", "b", "--dry-run"], "nosuch: no such folder, script or notebook"),
        (["build", "nosuch:train", "--base", "b", "--dry-run"], "no module 'nosuch'"),
        (["build", "{script}", "--base", "b", "--dry-run", "--network", "host"], "--network: is for --builder docker"),
        (["build", "{script}", "--base", "b", "--dry-run", "--claim", "c"], "--claim: is for --builder cluster"),
        (["build", "{script}", "--base", "b", "--dry-run", "--push-secret", "s"], "--push-secret: is for --builder"),
        (["build", "{script}", "--base", "b", "--dry-run", "--build-arg", "A=1"], "for --builder docker or cluster"),
        (
            [*ON_CLUSTER, "--claim", "c", "--store", "s3://b/f"],
            "--claim, --store: ",
        ),
        (["build", "{script}", "--base", "B:x:y", "--dry-run"], "--base: "),
        (["build", "{script}", "--base", "b", "--dry-run", "--containerfile", "/nosuch"], "--containerfile: /nosuch"),
        (["build", ":train", "--base", "b", "--dry-run"], "':train': names no module, expected MODULE:FUNCTION"),
        (["build", "json:", "--base", "b", "--dry-run"], "'json:': names no function, expected MODULE:FUNCTION"),
        (["build", "{script}", "--base", "b", "--dry-run", "--command", 'a "x'], "a quotation mark is not closed"),
        (["build", "{script}", "--base", "b", "--dry-run", "--command", "a \\"], "a backslash stands at its end"),
        ([*NOWHERE, "--to", "reg.io/UPPER"], "--to: a repository is lower-case"),
        ([*NOWHERE, "--platform", "linux"], "--platform: "),
        ([*NOWHERE, "--workdir", "../x"], "Error: --workdir: "),
        ([*NOWHERE, "--user", "a:b:c"], "Error: --user: "),
        ([*NOWHERE, "--env", "A B=1"], "Error: --env: a variable's name has letters"),
        ([*NOWHERE, "--env", "user=1\n2"], "Error: --env user: must be one line"),
        ([*NOWHERE, "--docker-config", "/nosuch/file"], "'--docker-config': File '/nosuch/file' does not exist"),
        ([*NOWHERE, "--docker-config", "/"], "'--docker-config': File '/' is a directory"),
        (
            [*NOWHERE, "--insecure", "http://reg.io"],
            "Error: --insecure: must be HOST or HOST:PORT, got 'http://reg.io'",
        ),
        ([*NOWHERE, "--mirror", "docker.io="], "Error: --mirror[docker.io]: must be HOST or HOST/PATH"),
        ([*NOWHERE, "--memory", "4Gi"], "--memory: is for --builder cluster"),
        ([*ON_CLUSTER, "--namespace", "Bad_NS"], "--namespace: must be at most 63 lower-case"),
        ([*ON_CLUSTER, "--push-secret", "Bad_S"], "--push-secret: must be at most 253 lower-case"),
        ([*ON_CLUSTER, "--claim", "Bad_C"], "--claim: must be at most 253 lower-case"),
        ([*ON_CLUSTER, "--builder-image", "Bad Image!"], "--builder-image: "),
        ([*ON_CLUSTER, "--memory", "much"], "--memory: must be a quantity such as 4Gi, got 'much'"),
        ([*ON_CLUSTER, "--claim-path", "/"], "Error: --claim, --claim-path: "),
        ([*ON_CLUSTER, "--claim", "c", "--claim-path", "/nosuch"], "claim c: /nosuch: no such folder"),
        ([*ON_CLUSTER, "--store-endpoint", "s"], "Error: --store-endpoint: needs store"),
        (
            [*ON_CLUSTER, "--store", "nonsense"],
            "Error: --store: must be s3://BUCKET or s3://BUCKET/PREFIX, got 'nonsense'",
        ),
        (["runtime"], "--to: is missing"),
        (["runtime", "--dry-run", "--docker-host", "unix:///nosuch.sock"], "DOCKER_HOST, or build on a cluster: "),
        (["runtime", "--dry-run", "--docker-host", "unix:///nosuch.sock", "--platform", "linux"], "--platform: "),
        (["runtime", "--docker-host", "unix:///nosuch.sock", "--to", "reg.io/UPPER"], "--to: a repository is lower"),
        (["inspect", "A B"], "image: "),
    ],
)
def test_user_errors_are_one_line_with_exit_code_2(words, message, script, monkeypatch, capsys) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    assert run(["image", *(word.format(script=script) for word in words)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("command", "help_text"),
    [
        ("build", "a registry alone, a Docker daemon or a Job on Kubernetes."),
        ("runtime", "Build by a Docker daemon or a Job on Kubernetes."),
        ("build", "SOURCE is a folder, a SCRIPT.py, a NOTEBOOK.ipynb, or MODULE:FUNCTION."),
        ("runtime", "Resolves the base image's digest."),
    ],
)
def test_help_lists_builders(command, help_text, capsys) -> None:
    assert run(["image", command, "--help"]) == 0
    assert help_text in " ".join(capsys.readouterr().out.split())


def test_missing_base_is_reported_before_upload(script, registry, capsys) -> None:
    words = ["image", "build", str(script), "--base", f"{registry.host}/no/such:1", "--insecure", registry.host]
    assert run([*words, "--to", f"{registry.host}/cli/none"]) == 2
    assert "no/such:1" in capsys.readouterr().err


def test_progress_is_plain_without_terminal() -> None:
    stream = io.StringIO()
    with BuildDisplay(stream) as display:
        for progress in (
            BuildProgress("Step 1/1 (FROM b)"),
            BuildProgress("Step 1/1 (FROM b)", text="said"),
            BuildProgress("Push layer", "sha256:abc", 5, 10),
            BuildProgress("Push layer", "sha256:abc", 10, 10),
            BuildProgress("Push layer", "sha256:abc", 10, 10),
            BuildProgress("Push layer", "def", text="Layer already exists"),
        ):
            display(progress)
    assert stream.getvalue().splitlines() == [
        "Step 1/1 (FROM b)",
        "  said",
        "Push layer abc: 10 bytes",
        "Push layer def: Layer already exists",
    ]


def test_terminal_shows_bar_per_layer() -> None:
    stream = io.StringIO()
    with BuildDisplay(stream, bars=True) as display:
        display(BuildProgress("Push layer", "sha256:abc", 5, 10))
        display(BuildProgress("Push layer", "sha256:def", 1_000, 2_000))
        display(BuildProgress("RUN true", text="[red]said[/red]"))
    shown = stream.getvalue()
    assert "abc" in shown
    assert "def" in shown
    assert "━" in shown
    assert "[red]said[/red]" in shown
