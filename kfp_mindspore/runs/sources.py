"""Finds pipelines: this package's by name, a user's in a Python file, a compiled one in YAML."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from kfp_mindspore.compat.lazy_kfp import import_kfp
from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.runs.spec import PipelineSpec, parse_spec, read_spec

PACKAGE = "kfp_mindspore.pipelines"


def list_pipelines() -> dict[str, str]:
    """Return the pipelines that come with this package: their first line of help by name, nothing imported."""
    import ast

    found = {}
    package = importlib.util.find_spec(PACKAGE)
    for location in package.submodule_search_locations or () if package else ():
        for file in sorted(Path(location).glob("*/pipeline.py")):
            documentation = ast.get_docstring(ast.parse(file.read_text())) or ""
            found[file.parent.name] = documentation.partition("\n")[0]
    return found


def get_project_directory(source: str) -> Path | None:
    """Return the directory that holds the user's code for a source, or None for a pipeline of this package."""
    path, _ = _split(source)
    if path.suffix == ".py":
        return path.absolute().parent
    return Path.cwd() if _is_compiled(path) else None


def check_source(source: str) -> None:
    """Find out whether a source can exist, without importing anything.

    Raises:
        NotFoundError: There is no such pipeline or file; the message names what there is.
    """
    path, _ = _split(source)
    if path.suffix == ".py" or _is_compiled(path):
        if not path.is_file():
            raise NotFoundError(f"{path}: no such file")
    elif source not in list_pipelines():
        raise NotFoundError(
            f"{source}: no such pipeline",
            hint=f"Known are {', '.join(list_pipelines()) or 'none'}, a file.py[:function], and a compiled file.yaml.",
        )


def load_spec(source: str) -> PipelineSpec:
    """Compile a pipeline, or read a compiled one.

    Args:
        source: A name from `list_pipelines`, `path/to/file.py`, `path/to/file.py:function`, or a compiled `.yaml`
            or `.json` file.

    Raises:
        NotFoundError: There is no such pipeline or file.
        UserError: The file does not import, holds no pipeline or several, or does not compile.
    """
    check_source(source)
    path, function = _split(source)
    if _is_compiled(path):
        return read_spec(path)
    import_kfp()
    if path.suffix == ".py":
        return compile_pipeline(_choose(_import_file(path), function, str(path)))
    return compile_pipeline(_choose(importlib.import_module(f"{PACKAGE}.{source}.pipeline"), source, source))


def compile_pipeline(pipeline: Any) -> PipelineSpec:
    """Compile a pipeline or component function of `kfp.dsl`.

    Raises:
        UserError: It is none.
    """
    if not is_pipeline(pipeline):
        name = getattr(pipeline, "__name__", type(pipeline).__name__)
        raise UserError(f"{name}: expected a function with @dsl.pipeline, got {type(pipeline).__name__}")
    from google.protobuf import json_format

    spec: PipelineSpec = json_format.MessageToDict(pipeline.pipeline_spec)
    return spec


def compile_text(source: str, image: str = "") -> str:
    """Compile a pipeline into the YAML that KFP's page for uploads takes, its platform configuration included.

    Args:
        source: As for `load_spec`.
        image: Replaces the placeholder images; none by default.
    """
    import tempfile

    import yaml

    from kfp_mindspore.runs.image import set_image

    path, function = _split(source)
    check_source(source)
    if _is_compiled(path):
        text = path.read_text()
        parse_spec(text, subject=str(path))
    else:
        import_kfp()
        from kfp import compiler

        module = _import_file(path) if path.suffix == ".py" else importlib.import_module(f"{PACKAGE}.{source}.pipeline")
        pipeline = _choose(module, function if path.suffix == ".py" else source, source)
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory, "pipeline.yaml")
            compiler.Compiler().compile(pipeline, str(file))
            text = file.read_text()
    if not image:
        return text
    documents = [set_image(document, image) for document in yaml.safe_load_all(text) if document]
    head = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    return head + yaml.safe_dump_all(documents, sort_keys=True)


def is_pipeline(value: Any) -> bool:
    """Tell whether a value is a pipeline or component of `kfp.dsl`."""
    import_kfp()
    from kfp.dsl.base_component import BaseComponent

    return isinstance(value, BaseComponent)


def _split(source: str) -> tuple[Path, str]:
    head, colon, function = source.rpartition(":")
    return (Path(head), function) if colon and head.endswith(".py") else (Path(source), "")


def _is_compiled(path: Path) -> bool:
    return path.suffix in (".yaml", ".yml", ".json")


def _import_file(path: Path) -> ModuleType:
    directory = str(path.absolute().parent)
    if directory not in sys.path:
        # The project's other modules are imported by their bare names, as `python pipeline.py` would.
        sys.path.insert(0, directory)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except (ImportError, SyntaxError, NameError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _choose(module: ModuleType, function: str, subject: str) -> Any:
    from kfp.dsl.graph_component import GraphComponent

    found = {name: value for name, value in vars(module).items() if isinstance(value, GraphComponent)}
    if function:
        chosen = getattr(module, function, None)
        if not is_pipeline(chosen):
            raise NotFoundError(
                f"{subject}: no pipeline named {function}", hint=f"Found: {', '.join(found) or 'none'}."
            )
        return chosen
    if len(found) == 1:
        return next(iter(found.values()))
    if not found:
        raise UserError(f"{subject}: holds no pipeline", hint="Decorate a function with @dsl.pipeline.")
    raise UserError(
        f"{subject}: holds several pipelines: {', '.join(found)}", hint=f"Name one: {subject}:{next(iter(found))}"
    )
