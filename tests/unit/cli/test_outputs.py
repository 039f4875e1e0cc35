"""Output paths of all commands and public functions: nothing but an earlier output is replaced."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

import kfp_mindspore
from kfp_mindspore.cli.main import cli, run
from kfp_mindspore.cli.shared.output import OutputPath

NETWORK = "kfp_mindspore.workloads.digits.network:LeNet"
SWEEP = f"--network {NETWORK} --dataset {{dataset}} --space {{space}} --objective accuracy --trials 1"


@dataclass(frozen=True)
class Case:
    """A command with an output path.

    Args:
        words: Its words; `{out}` is the output, other names in braces are inputs.
        suffix: End of the output's name.
        keeps_others: Whether the output is a directory whose other content is kept.
        refuses_late: Whether another file at its place is refused after work that these tests leave out.
    """

    words: str
    suffix: str = ""
    keeps_others: bool = False
    refuses_late: bool = False

    @property
    def inputs(self) -> list[str]:
        """The inputs that must not be the output: all but the parameters' declaration."""
        return [name for name in re.findall(r"{(\w+)}", self.words) if name not in ("out", "space")]


CASES: dict[tuple[str, str], Case] = {
    ("dataset load", "directory"): Case("dataset load {table} {out} --test {test}"),
    ("init", "directory"): Case("init {out}"),
    ("job convert", "output"): Case("job convert {manifest} -o {out}", ".yaml"),
    ("job submit", "checkpoints"): Case(
        "job submit --name x --dataset {dataset} --checkpoints {out} -- true", keeps_others=True
    ),
    ("job submit", "output"): Case("job submit --name x --dataset {dataset} --output {out} -- true", keeps_others=True),
    ("lm create", "output"): Case("lm create {table} -o {out}"),
    ("lm evaluate", "report"): Case("lm evaluate {model} {table} --base {base} --report {out}", ".html"),
    ("lm export", "output"): Case("lm export {model} -o {out}"),
    ("lm finetune", "output"): Case("lm finetune {model} {table} -o {out}", keeps_others=True),
    ("lm import", "output"): Case("lm import {model} -o {out}"),
    ("vision classes", "output"): Case("vision classes {model} --labels a,b -o {out}"),
    ("vision finetune", "output"): Case("vision finetune {model} {table} -o {out}", keeps_others=True),
    ("vision import", "output"): Case("vision import {model} -o {out}"),
    ("vision index", "output"): Case("vision index {dataset} --model {model} -o {out}", ".parquet"),
    ("vision index", "report"): Case("vision index {dataset} --model {model} -o x.parquet --report {out}", ".html"),
    ("vision search", "html"): Case("vision search {table} cat --model {model} --html {out}", ".html"),
    ("lm split", "output"): Case("lm split {model} --layer 1 -o {out}", keeps_others=True),
    ("model compress", "output"): Case("model compress {checkpoint} --dataset {dataset} -o {out}"),
    ("model export", "output"): Case("model export {checkpoint} --dataset {dataset} --strategy {strategy} -o {out}"),
    ("model import", "output"): Case("model import {graph} --example {table} -o {out}"),
    ("model predict", "written"): Case("model predict {model} {table} -o {out}", ".csv", refuses_late=True),
    ("pipeline compile", "output"): Case("pipeline compile {manifest} -o {out}", ".yaml"),
    ("runs compare", "output"): Case("runs compare some-run -o {out}", ".html"),
    ("service drift", "report"): Case("service drift --model {model} --log {table} --report {out}", ".html"),
    ("sweep export", "to"): Case(f"sweep export --katib --name x {SWEEP} -o {{out}}", ".yaml"),
    ("sweep report", "output"): Case("sweep report {dataset} -o {out}", ".html"),
    ("sweep run", "directory"): Case(f"sweep run {{out}} {SWEEP}", keeps_others=True),
}
# Paths that commands read, and words of other machines.
READ = {
    ("dataset inspect", "directory"), ("image build", "containerfile"), ("image build", "requirements_file"),
    ("image build", "claim_path"), ("image runtime", "wheel"), ("image runtime", "constraints"),
    ("image runtime", "claim_path"), ("job convert", "file"), ("job submit", "dataset"), ("job submit", "working_dir"),
    ("lm evaluate", "base"),
    ("lm evaluate", "bundle"), ("lm export", "bundle"), ("lm finetune", "bundle"), ("lm split", "bundle"),
    ("model compress", "checkpoint"), ("model compress", "dataset"), ("model export", "checkpoint"),
    ("model export", "dataset"), ("model export", "dimensions"), ("model export", "example"),
    ("model export", "strategy"), ("model import", "dataset"), ("model import", "example"), ("model import", "file"),
    ("model inspect", "path"), ("model predict", "file"), ("model predict", "path"), ("model push", "path"),
    ("model verify", "path"),
    ("serve", "model_dir"), ("sweep best", "directory"), ("sweep export", "output"), ("sweep export", "script"),
    ("sweep report", "directory"), ("sweep resume", "directory"), ("sweep run", "output"), ("sweep run", "script"),
    ("sweep show", "directory"), ("vision classes", "model"), ("vision finetune", "bundle"),
    ("vision index", "model"), ("vision search", "index"), ("vision search", "model"), ("vision search", "picture"),
}  # fmt: skip
# Files with credentials, of all commands.
OUTPUT_NAME = re.compile(r"output|output_dir|directory|out|to|written")
CREDENTIALS = {"ca_file", "docker_config", "key_file", "kubeconfig", "token_file"}
# Public functions with an output, and the command that calls each.
FUNCTIONS = {
    "compression.compress": "model compress",
    "data.load_dataset": "dataset load",
    "mindir.export_mindir": "model export",
    "msjob.MSJobClient.train": "job submit",
    "ray.load_dataset": "dataset load",
    "sweeps.sweep": "sweep run",
    # Tested in tests/unit/training/test_output.py: it writes what `fit` does.
    "training.TrainingConfig": "",
}
READING = {"sweeps.resume_sweep"}


def list_parameters() -> Iterator[tuple[str, click.Parameter]]:
    """Yield each parameter of each command, with the command's name."""

    def walk(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, click.Parameter]]:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from walk(found, (*words, name))
        for parameter in command.params:
            yield " ".join(words), parameter

    yield from walk(cli, ())


def list_functions() -> Iterator[str]:
    """Yield the qualified names of public functions and methods with a parameter that may be an output.

    Their code is parsed: importing all packages takes 20 s.
    """
    root = Path(kfp_mindspore.__file__).parent
    for stub in sorted(root.glob("*/__init__.pyi")):
        # What steps and setters take is KFP's: outputs are artifacts, at paths of KFP.
        for line in ast.parse(stub.read_text()).body if stub.parent.name not in ("components", "dsl") else ():
            if not isinstance(line, ast.ImportFrom):
                continue
            module = stub.parent.joinpath(*str(line.module).split(".")).with_suffix(".py")
            if not module.is_file():
                module = module.with_suffix("") / "__init__.py"
            names = {alias.name for alias in line.names}
            for item in ast.parse(module.read_text()).body:
                if getattr(item, "name", "") in names and not item.name.endswith("Result"):
                    for name, parameters in list_signatures(item):
                        if any(OUTPUT_NAME.fullmatch(parameter) for parameter in parameters):
                            yield f"{stub.parent.name}.{name}"


def list_signatures(item: ast.stmt) -> Iterator[tuple[str, list[str]]]:
    """Yield the parameter names of a function, or of a class's public methods and dataclass fields."""
    if isinstance(item, ast.FunctionDef):
        given = item.args
        yield item.name, [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    elif isinstance(item, ast.ClassDef):
        fields = [entry.target.id for entry in item.body if isinstance(entry, ast.AnnAssign)]
        yield item.name, fields
        for member in item.body:
            if isinstance(member, ast.FunctionDef) and (member.name == "__init__" or member.name[0] != "_"):
                for name, parameters in list_signatures(member):
                    yield f"{item.name}.{name}", parameters


def test_each_output_of_a_command_has_a_case() -> None:
    declared = {(name, str(item.name)) for name, item in list_parameters() if isinstance(item.type, OutputPath)}
    assert declared == set(CASES)


def test_each_path_of_a_command_is_declared_as_output_or_input() -> None:
    named = re.compile(r"out|output|to|write|written|report|directory|\w+_dir")
    paths = {
        (command, str(item.name))
        for command, item in list_parameters()
        if isinstance(item.type, click.Path)
        or (named.fullmatch(str(item.name)) and isinstance(item.type, click.types.StringParamType))
    }
    assert {path for path in paths if path[1] not in CREDENTIALS} == set(CASES) | READ


def test_each_public_function_with_an_output_has_a_case() -> None:
    assert set(list_functions()) == set(FUNCTIONS) | READING
    assert {command for command in FUNCTIONS.values() if command} <= {command for command, _ in CASES}


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Return inputs by name, in the working directory; none is ever opened."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KFP_MINDSPORE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "local")
    found = {name: tmp_path / name for name in ("model", "base", "checkpoint", "dataset", "strategy")}
    for folder in found.values():
        folder.mkdir()
        (folder / "content").write_text("input")
    files = {"table": "table.csv", "test": "test.csv", "graph": "net.mindir", "manifest": "job.yaml"}
    for name, file in files.items():
        found[name] = tmp_path / file
        found[name].write_text("input")
    found["space"] = tmp_path / "space.yaml"
    found["space"].write_text("learning_rate: [0.1, 0.2]\n")
    return found


def read_all(directory: Path) -> dict[str, bytes | None]:
    """Return the content of each file, and None for each folder, by path."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
        if "home" not in path.parts
    }


def refuse(
    case: Case, inputs: dict[str, Path], out: Path | str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Assert that a command refuses an output with exit code 2 and changes nothing."""
    directory = inputs["table"].parent
    before = read_all(directory)
    words = [word.format(out=out, **inputs) for word in case.words.split()]
    assert run(words) == 2, capsys.readouterr()
    assert re.search(message, capsys.readouterr().err.replace("\n", " "))
    assert read_all(directory) == before


cases = pytest.mark.parametrize("case", CASES.values(), ids=[" ".join(key) for key in CASES])


@cases
def test_other_files_and_directories_are_kept(
    case: Case, inputs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    if case.refuses_late:
        pytest.skip("tests/unit/data/test_predictions.py")
    file = inputs["table"].with_name(f"precious{case.suffix}")
    file.write_text("precious")
    refuse(case, inputs, file, r"precious\S*: is a file", capsys)
    file.unlink()
    file.symlink_to(inputs["table"])
    refuse(case, inputs, file, r"precious\S*: is (a file|the input)|no valid project name", capsys)
    file.unlink()
    if not case.keeps_others:
        file.mkdir()
        (file / "notes").write_text("precious")
        refuse(case, inputs, file, r"precious\S*: (is a directory|must be new or empty)", capsys)


@cases
def test_output_is_no_input(case: Case, inputs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    for name in case.inputs:
        given = inputs[name]
        if case.suffix and given.suffix != case.suffix and not given.is_dir():
            # The command takes another suffix only.
            continue
        link = given.with_name(f"link{case.suffix}")
        link.symlink_to(given)
        if given.is_dir() and not case.keeps_others:
            refuse(case, inputs, given / f"new{case.suffix}", "is in the input", capsys)
            refuse(case, inputs, link / f"new{case.suffix}", "is in the input", capsys)
        if given.is_dir() != bool(case.suffix):
            refuse(case, inputs, given, "is the input", capsys)
            refuse(case, inputs, f"{given}/" if given.is_dir() else given, "is the input", capsys)
            refuse(case, inputs, link, "is the input", capsys)
        link.unlink()


@cases
def test_output_contains_no_input(case: Case, inputs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    if case.suffix or case.keeps_others:
        pytest.skip("nothing is lost")
    for name in case.inputs:
        around = inputs["table"].parent / "around"
        around.mkdir()
        moved = Path(shutil.move(inputs[name], around))
        refuse(case, {**inputs, name: moved}, around, "contains the input", capsys)
        shutil.move(moved, inputs[name])
        around.rmdir()
