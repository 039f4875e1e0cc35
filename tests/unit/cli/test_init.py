import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kfp_mindspore.cli import init
from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import AlreadyExistsError, UserError
from kfp_mindspore.runs.compiled.sources import compile_text
from kfp_mindspore.runs.compiled.spec import list_parameters, parse_spec

FILES = [".gitignore", "README.md", "network.py", "notebook.ipynb", "pipeline.py", "train.py"]


def list_names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_project_is_written_to_new_directory(tmp_path, capsys):
    assert run(["init", str(tmp_path / "deep" / "my-project")]) == 0
    assert list_names(tmp_path / "deep" / "my-project") == FILES
    assert list_names(tmp_path / "deep") == ["my-project"]
    assert f"cd {tmp_path}/deep/my-project && kfp-mindspore run pipeline.py" in capsys.readouterr().out


def test_json_lists_files(tmp_path, capsys):
    assert run(["init", str(tmp_path / "mine"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"directory": str(tmp_path / "mine"), "files": FILES}


def test_existing_directory_is_filled_in_place(tmp_path, monkeypatch, capsys):
    project = tmp_path / "mine"
    (project / ".git").mkdir(parents=True)
    monkeypatch.chdir(project)
    inode = project.stat().st_ino
    assert run(["init", "."]) == 0
    assert project.stat().st_ino == inode
    assert list_names(project) == sorted([*FILES, ".git"])
    assert "Next: kfp-mindspore run pipeline.py" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (["mine/notes.txt"], "mine: must be new or empty, has notes.txt"),
        (["mine/.hidden"], "has .hidden"),
        (["mine/a", "mine/b", "mine/c", "mine/d"], "has a, b, c and 1 more"),
        (["mine"], "mine: is a file"),
        (["mine/train.py"], "has train.py"),
    ],
)
def test_non_empty_directory_is_refused(tmp_path, monkeypatch, capsys, before, message):
    for name in before:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert run(["init", "mine"]) == 2
    assert message in capsys.readouterr().err
    kept = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert kept == dict.fromkeys(before, "mine")


@pytest.mark.parametrize("name", ["9lives", "-x", "my project", "x.y", "größe", "a" * 41, "end-", "_x", "a;b"])
def test_invalid_name_is_refused(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    assert run(["init", "--", name]) == 2
    error = capsys.readouterr().err
    assert f"directory: {name!r} is no valid project name" in error
    assert "kfp-mindspore init my-project" in error
    assert not list_names(tmp_path)


def test_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    real = init.files.write_text

    def write(path, text):
        if path.name == "pipeline.py":
            raise OSError(28, "No space left on device")
        real(path, text)

    monkeypatch.setattr(init.files, "write_text", write)
    for name in ("mine", "new"):
        with pytest.raises(UserError, match=f"{name}: cannot be written: No space left on device"):
            init.write_project(tmp_path / name)
    assert list_names(tmp_path) == ["mine"]
    assert not list_names(tmp_path / "mine")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_directory_is_refused(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(UserError, match="cannot be written: Permission denied"):
        init.write_project(tmp_path / "mine")


def test_dangling_link_is_refused(tmp_path):
    (tmp_path / "mine").symlink_to(tmp_path / "nowhere")
    with pytest.raises(AlreadyExistsError):
        init.write_project(tmp_path / "mine")


@pytest.mark.parametrize("name", ["my-project", "My_Project", "x", "a" * 40])
def test_pipeline_and_service_are_named_after_directory(name):
    slug = name.lower().replace("_", "-")
    text = init.render_project(name)["pipeline.py"]
    assert f'@dsl.pipeline(name="{slug}"' in text
    assert f'service_name: str = "{slug}"' in text


def test_cluster_tests_have_arguments_of_every_template():
    from tests.cluster.scenarios.test_kserve_templates import ARGUMENTS

    assert [template for template in init.TEMPLATES if template not in ARGUMENTS] == []


@pytest.mark.parametrize("template", init.TEMPLATES)
def test_compiled_template_passes_namespace_and_account_on(tmp_path, template):
    init.write_project(tmp_path / "mine", template)
    spec = parse_spec(compile_text(str(tmp_path / "mine" / "pipeline.py"), "registry.example.com/mine:1"))
    names = {parameter.name: parameter.default for parameter in list_parameters(spec)}
    assert (names["namespace"], names["service_account"]) == ("", "")
    for task, passed in (("train-msjob", ["namespace"]), ("deploy-kserve", ["namespace", "service_account"])):
        inputs = spec["root"]["dag"]["tasks"][task]["inputs"]["parameters"]
        assert [inputs[name] for name in passed] == [{"componentInputParameter": name} for name in passed]


def test_project_for_image_search_compiles(tmp_path, capsys):
    assert run(["init", str(tmp_path / "mine"), "--template", "image-search"]) == 0
    assert list_names(tmp_path / "mine") == [".gitignore", "README.md", "draw.py", "notebook.ipynb", "pipeline.py"]
    assert "mine && python draw.py && kfp-mindspore run pipeline.py" in capsys.readouterr().out
    spec = parse_spec(compile_text(str(tmp_path / "mine" / "pipeline.py"), "registry.example.com/mine:1"))
    inputs = spec["root"]["dag"]["tasks"]["deploy-kserve"]["inputs"]["parameters"]
    for name in ("namespace", "service_account"):
        assert inputs[name] == {"componentInputParameter": name}


@pytest.mark.parametrize(
    ("name", "template"),
    [
        *(("my-project", template) for template in (*init.TEMPLATES, *init.PROJECTS)),
        *(("a" * 40, template) for template in ("classification", "image-search")),
    ],
)
def test_project_passes_ruff(tmp_path, name, template):
    init.write_project(tmp_path / name, template)
    ruff = [sys.executable, "-m", "ruff"]
    common = ["--isolated", "--line-length", "120", "."]
    subprocess.run([*ruff, "format", "--check", *common], cwd=tmp_path / name, check=True)
    subprocess.run([*ruff, "check", "--select", "E,F,W,I,UP,B", *common], cwd=tmp_path / name, check=True)


def test_notebook_is_valid_without_outputs(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.reads(init.render_project("mine")["notebook.ipynb"], as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)


def test_every_template_is_packaged():
    folders = Path(init.__file__).parent / "templates"
    templates = folders / "project"
    # pyproject.toml's package data: `*.j2` leaves out names with a leading dot.
    for folder in folders.iterdir():
        assert {path.name for path in folder.iterdir()} == {path.name for path in folder.glob("*.j2")}
    assert {path.name.removesuffix(".j2").lstrip(".") for path in templates.iterdir()} == {
        name.lstrip(".") for name in FILES
    } - {"network.py", "train.py"}
