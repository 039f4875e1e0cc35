"""`kfp-mindspore init`: writes a small runnable project."""

from __future__ import annotations

import re
from pathlib import Path

import click

from kfp_mindspore import files
from kfp_mindspore.cli.output import add_json_option, print_json
from kfp_mindspore.errors import AlreadyExistsError, UserError

# The slug names the service and its Kubernetes objects: a DNS label that leaves room for what is appended to it.
_MAXIMUM_NAME = 40
_NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9_-]*[A-Za-z0-9])?")
_TEMPLATES = Path(__file__).with_name("templates") / "project"
_HIDDEN = ("gitignore",)
# What may stand in a directory before: a repository that was just made.
_IGNORED = {".git"}


@click.command(epilog="Example: kfp-mindspore init my-project && cd my-project && kfp-mindspore run pipeline.py")
@click.argument("directory", type=click.Path(path_type=Path))
@add_json_option
def init(directory: Path, as_json: bool) -> None:
    """Write a small runnable project into DIRECTORY, which must be new or empty.

    It trains a network on a data set that comes along, exports, evaluates and serves it. The last part of DIRECTORY
    names the pipeline and the service.
    """
    written = write_project(directory)
    if as_json:
        print_json({"directory": str(directory), "files": written})
        return
    click.echo(f"{directory}: {', '.join(written)}")
    here = "" if directory.resolve() == Path.cwd().resolve() else f"cd {directory} && "
    click.echo(f"Next: {here}kfp-mindspore run pipeline.py")


def write_project(directory: Path) -> list[str]:
    """Write the project into a new or empty directory: all of it or, when something goes wrong, nothing.

    Args:
        directory: The directory; its last part names the pipeline and the service.

    Returns:
        The names of the files, sorted.

    Raises:
        UserError: The name cannot name a service, or the directory cannot be written.
        AlreadyExistsError: The directory has files, or is a file.
    """
    project = render_project(directory.resolve().name)
    _check_directory(directory)
    if directory.is_dir():
        # Not replaced: it may be the working directory.
        written: list[Path] = []
        try:
            for name, text in project.items():
                files.write_text(directory / name, text)
                written.append(directory / name)
        except BaseException as error:
            for file in written:
                file.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise _explain(directory, error) from error
            raise
    else:
        try:
            with files.replace_directory(directory) as temporary:
                for name, text in project.items():
                    files.write_text(temporary / name, text)
        except OSError as error:
            raise _explain(directory, error) from error
    return sorted(project)


def render_project(name: str) -> dict[str, str]:
    """Return the text of each file of a project by its name.

    Args:
        name: Name of the project; with hyphens for underscores and in lower case it names the service.

    Raises:
        UserError: The name cannot name a service.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    if not _NAME.fullmatch(name) or len(name) > _MAXIMUM_NAME:
        raise UserError(
            f"directory: {name!r} cannot name a project: must be at most {_MAXIMUM_NAME} letters, digits, '-' and '_', "
            "begin with a letter and end with a letter or digit",
            hint="For example: kfp-mindspore init my-project",
        )
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    values = {"name": name, "slug": name.lower().replace("_", "-")}
    project = {}
    for template in environment.list_templates(extensions=["j2"]):
        file = template.removesuffix(".j2")
        project[f".{file}" if file in _HIDDEN else file] = environment.get_template(template).render(values)
    return project


def _check_directory(directory: Path) -> None:
    if not directory.exists() and not directory.is_symlink():
        return
    if not directory.is_dir():
        raise AlreadyExistsError(f"{directory}: is a file, expected a new or empty directory")
    try:
        found = sorted(entry.name for entry in directory.iterdir() if entry.name not in _IGNORED)
    except OSError as error:
        raise _explain(directory, error) from error
    if found:
        shown = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
        raise AlreadyExistsError(
            f"{directory}: must be new or empty, has {shown}", hint="Nothing was written. Name another directory."
        )


def _explain(directory: Path, error: OSError) -> UserError:
    return UserError(f"{directory}: cannot be written: {error.strerror or error}")
