"""Pipeline sources: the name of a pipeline in this package, a Python file, or a compiled YAML or JSON file."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from kfp_mindspore.compat.lazy_kfp import import_kfp
from kfp_mindspore.errors import NotFoundError, UserError, suggest
from kfp_mindspore.runs.compiled.spec import (
    PipelineSpec,
    disable_exit_task_caching,
    dump_spec,
    parse_documents,
    read_spec,
)

PACKAGE = "kfp_mindspore.pipelines"


def list_pipelines() -> dict[str, str]:
    """Return each packaged pipeline's first docstring line by name, without importing it."""
    import ast

    descriptions = {}
    package = importlib.util.find_spec(PACKAGE)
    for location in package.submodule_search_locations or () if package else ():
        for file in sorted(Path(location).glob("*/*/pipeline.py")):
            documentation = ast.get_docstring(ast.parse(file.read_text())) or ""
            descriptions[file.parent.name] = documentation.partition("\n")[0]
    return descriptions


def get_project_directory(source: str) -> Path | None:
    """Return the user code directory for a source, or None for a pipeline in this package."""
    path, _ = _split(source)
    if path.suffix == ".py":
        return path.absolute().parent
    return Path.cwd() if _is_compiled(path) else None


def get_file(source: str) -> Path | None:
    """Return a source's file, or None for a pipeline in this package."""
    path, _ = _split(source)
    return path if path.suffix == ".py" or _is_compiled(path) else None


def make_absolute(source: str) -> str:
    """Return a source that is valid in any working directory."""
    path, function = _split(source)
    if get_file(source) is None:
        return source
    return f"{path.absolute()}:{function}" if function else str(path.absolute())


def get_name(source: str) -> str:
    """Return a source's pipeline name without importing it; the file's name if the code does not show it."""
    import ast

    path, function = _split(source)
    if _is_compiled(path):
        found = re.search(r"^pipelineInfo:\n\s+name: *(\S+)", path.read_text(errors="replace"), re.MULTILINE)
        return found[1] if found else path.stem
    if path.suffix != ".py":
        return source
    names = {}
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return path.stem
    for node in tree.body:
        for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            call = decorator.func if isinstance(decorator, ast.Call) else decorator
            if isinstance(node, ast.FunctionDef) and ast.unparse(call).rpartition(".")[2] == "pipeline":
                keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
                given = [word.value for word in keywords if word.arg == "name"]
                names[node.name] = str(given[0].value) if given and isinstance(given[0], ast.Constant) else node.name
    return names.get(function, path.stem) if function or len(names) != 1 else next(iter(names.values()))


def check_source(source: str) -> None:
    """Check that a source exists, without importing it.

    Raises:
        NotFoundError: The pipeline or file does not exist; the message lists the pipelines in this package.
    """
    path, _ = _split(source)
    pipelines = list_pipelines()
    is_file = path.suffix == ".py" or _is_compiled(path)
    if path.is_file() if is_file else source in pipelines:
        return
    problem = f"{path}: no such file" if is_file else f"{source}: no such pipeline"
    if path.is_dir() and (path / "pipeline.py").is_file():
        raise NotFoundError(f"{path}: is a directory; did you mean '{path / 'pipeline.py'}'?")
    if not is_file and path.exists():
        problem = f"{path}: is no .py, .yaml or .json file"
    raise NotFoundError(
        f"{problem}{suggest(path.stem, pipelines, listed=False)}",
        hint=f"Expected {', '.join([*pipelines, 'file.py[:function]'])} or a compiled file.yaml.",
    )


def load_spec(source: str) -> PipelineSpec:
    """Compile a pipeline, or read a compiled one.

    Args:
        source: A name from `list_pipelines`, `path/to/file.py`, `path/to/file.py:function`, or a compiled `.yaml` or
            `.json` file.

    Raises:
        NotFoundError: The pipeline or file does not exist.
        UserError: The file cannot be imported, contains no pipeline or several, or does not compile.
    """
    check_source(source)
    path, _ = _split(source)
    return read_spec(path) if _is_compiled(path) else compile_pipeline(_load_pipeline(source))


def compile_pipeline(pipeline: Any) -> PipelineSpec:
    """Compile a `kfp.dsl` pipeline or component.

    Raises:
        UserError: The value is neither.
    """
    if not _is_runnable(pipeline):
        name = getattr(pipeline, "__name__", type(pipeline).__name__)
        raise UserError(f"{name}: expected a function with @dsl.pipeline, got {type(pipeline).__name__}")
    from google.protobuf import json_format

    spec: PipelineSpec = json_format.MessageToDict(pipeline.pipeline_spec)
    return spec


def compile_text(source: Any, image: str = "") -> str:
    """Compile a pipeline to the YAML that Kubeflow Pipelines accepts, including the platform configuration.

    Args:
        source: A function with `@dsl.pipeline`, or a source as for `load_spec`.
        image: Replaces the placeholder images; empty to keep them.

    Raises:
        NotFoundError: The pipeline or file does not exist.
        UserError: The file cannot be imported, contains no pipeline or several, does not compile, or a step would
            refuse an argument.
    """
    import tempfile

    from kfp_mindspore.runs.compiled.argument_checks import check_arguments
    from kfp_mindspore.runs.compiled.image import set_image
    from kfp_mindspore.runs.compiled.task_config_digest import add_task_config_digests

    is_name = isinstance(source, str)
    if is_name:
        check_source(source)
    if is_name and _is_compiled(path := _split(source)[0]):
        text = path.read_text()
        compiled = parse_documents(text, subject=str(path))
    else:
        pipeline = _load_pipeline(source) if is_name else source
        if not _is_runnable(pipeline):
            raise UserError(f"source: must be a function with @dsl.pipeline or a source's name, got {source!r}")
        from kfp import compiler

        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory, "pipeline.yaml")
            compiler.Compiler().compile(pipeline, str(file))
            text = file.read_text()
        compiled = parse_documents(text)
    check_arguments(compiled[0], None)
    documents = add_task_config_digests([disable_exit_task_caching(compiled[0]), *compiled[1:]])
    if image:
        documents = [set_image(document, image) for document in documents]
    if documents == compiled:
        return text
    head = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    return head + dump_spec(*documents)


def is_pipeline(value: object) -> bool:
    """Return whether a value is a function with `@dsl.pipeline`."""
    import_kfp()
    from kfp.dsl.graph_component import GraphComponent

    return isinstance(value, GraphComponent)


def _is_runnable(value: object) -> bool:
    """Return whether a value is a pipeline or a component, which is a pipeline of one step."""
    import_kfp()
    from kfp.dsl.base_component import BaseComponent

    return isinstance(value, BaseComponent)


def _split(source: str) -> tuple[Path, str]:
    head, colon, function = source.rpartition(":")
    return (Path(head), function) if colon and head.endswith(".py") else (Path(source), "")


def _is_compiled(path: Path) -> bool:
    return path.suffix in (".yaml", ".yml", ".json")


def _load_pipeline(source: str) -> Any:
    import_kfp()
    path, function = _split(source)
    if path.suffix == ".py":
        return _get_pipeline(_import_file(path), function, str(path))
    return getattr(importlib.import_module(PACKAGE), source)


def _import_file(path: Path) -> ModuleType:
    directory = str(path.absolute().parent)
    if directory not in sys.path:
        # As with `python pipeline.py`, the file can import its neighbours.
        sys.path.insert(0, directory)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's code may raise anything
        raise _explain_import_error(path, error) from error
    return module


def _explain_import_error(path: Path, error: Exception) -> UserError:
    from kfp.dsl.types.type_utils import InconsistentTypeException

    from kfp_mindspore.transform.load import describe_error

    message = describe_error(error, str(path.absolute()))
    if isinstance(error, InconsistentTypeException):
        return UserError(
            message.replace(f"{type(error).__name__}: ", "", 1),
            hint="Pass a value of the input's type: a list or dict for a STRING input as JSON text, json.dumps(value).",
        )
    return UserError(message, hint=error.hint if isinstance(error, UserError) else "")


def _get_pipeline(module: ModuleType, function: str, subject: str) -> Any:
    pipelines = {name: value for name, value in vars(module).items() if is_pipeline(value)}
    if function:
        pipeline = getattr(module, function, None)
        if not _is_runnable(pipeline):
            raise NotFoundError(
                f"{subject}: no pipeline named {function}", hint=f"Found: {', '.join(pipelines) or 'none'}."
            )
        return pipeline
    if not pipelines:
        raise UserError(f"{subject}: contains no pipeline", hint="Decorate a function with @dsl.pipeline.")
    if len(pipelines) > 1:
        raise UserError(
            f"{subject}: contains several pipelines: {', '.join(pipelines)}",
            hint=f"Name one: {subject}:{next(iter(pipelines))}",
        )
    return next(iter(pipelines.values()))
