"""`kfp-mindspore init`: create a runnable project."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import click

from kfp_mindspore import files
from kfp_mindspore.cli.shared.command import StrictCommand
from kfp_mindspore.cli.shared.output import OutputPath, add_json_option, print_json
from kfp_mindspore.errors import AlreadyExistsError, UserError

# The slug is the service name: a DNS label with room for its Kubernetes objects' suffixes.
_MAXIMUM_NAME = 40
_NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9_-]*[A-Za-z0-9])?")
_TEMPLATES = Path(__file__).with_name("templates")
_HIDDEN = ("gitignore",)
_WORKLOADS = "kfp_mindspore.workloads"
# Named data sets in the extra `workloads`.
_WORKLOAD_SETS = {"movielens"}
# A new Git repository counts as empty.
_IGNORED = {".git"}


@dataclass(frozen=True)
class TemplateParameter:
    """A further parameter for a template's pipeline.

    Args:
        name: Its name; a train.py option has the same one.
        default: A number or a text.
        description: For the pipeline's docstring, one line.
        is_option: Whether it is a train.py option; otherwise `data_options` has it.
    """

    name: str
    default: int | str
    description: str
    is_option: bool = True

    @property
    def type(self) -> str:
        """The annotation."""
        return type(self.default).__name__


@dataclass(frozen=True)
class Template:
    """The parts for a project.

    Args:
        workload: Package in `kfp_mindspore.workloads`: its network.py and train.py become the project's. train.py's
            options are --epochs, --learning-rate and --seed.
        dataset: A data set's name.
        data_options: Further load_dataset arguments, Python text without a comma at its end.
        parameters: Further pipeline parameters.
        extra: An extra that the network needs.
        preprocessing: The steps for load_dataset, JSON; empty for its default.
        epochs: Default for the pipeline's parameter.
        learning_rate: Default for the pipeline's parameter.
        metric: Gate metric.
        threshold: The metric's threshold.
    """

    workload: str
    dataset: str
    data_options: str = ""
    preprocessing: str = ""
    epochs: int = 10
    learning_rate: float = 0.001
    metric: str = "accuracy"
    threshold: float = 0.9
    parameters: tuple[TemplateParameter, ...] = ()
    extra: str = ""


# Fields in scikit-learn's breast cancer dataset for a network with two inputs.
_TWO_INPUTS = """inputs={
    "size": ["mean radius", "mean perimeter", "mean area", "worst radius", "worst perimeter", "worst area"],
    "shape": ["mean texture", "mean concavity", "mean symmetry", "worst concavity", "worst symmetry"],
}"""
_MINDCV = (
    TemplateParameter("network", "resnet18", "Name in mindcv.list_models()."),
    TemplateParameter(
        "initial", "", "Weights to start with: a path or URI of a checkpoint, bundle or file; empty for random ones."
    ),
    TemplateParameter(
        "freeze", "", "Untrained layers: backbone for all but the head, or patterns such as conv1.*,layer1.*."
    ),
    TemplateParameter(
        "image_size", 64, "Height and width of the images; weights of ImageNet are for 224.", is_option=False
    ),
)
# For any table with a text and a label; vocabularies of more words hold mistakes and names.
_WORDS = """inputs={"text": text},
target=[label],
task="classification",
preprocessing=json.dumps(
    [
        {
            "type": "Tokenize",
            "length": 64,
            "unit": f"{unit}",
            "lowercase": True,
            "max_values": 20000,
            "column": "text",
        }
    ]
)"""
_TEXT_FIELDS = (
    TemplateParameter("text", "text", "Field of the texts.", is_option=False),
    TemplateParameter("label", "label", "Field of the classes.", is_option=False),
    TemplateParameter("unit", "words", "Parts of the texts: words or subwords (extra tokenizers).", is_option=False),
)
TEMPLATES = {
    "classification": Template("tabular", "breast_cancer", 'task="classification"', epochs=100, learning_rate=0.003),
    "detection": Template(
        "detection",
        "scenes",
        'preprocessing="imagenet",\nimage_size=[image_size]',
        epochs=60,
        metric="map50",
        threshold=0.5,
        parameters=(
            TemplateParameter(
                "image_size", 64, "Height and width that pictures are stretched to, a multiple of 8.", is_option=False
            ),
        ),
    ),
    "mindcv": Template(
        "mindcv",
        "shapes",
        'preprocessing="imagenet",\nimage_size=[image_size]',
        epochs=8,
        threshold=0.8,
        parameters=_MINDCV,
        extra="mindcv",
    ),
    "regression": Template(
        "tabular", "diabetes", 'task="regression"', epochs=100, learning_rate=0.003, metric="rmse", threshold=60.0
    ),
    "sequence": Template(
        "sequence",
        "waves",
        preprocessing='[{"type": "Standardize"}, {"type": "Pad", "length": 40, "lengths": "lengths"}]',
        epochs=10,
        learning_rate=0.005,
    ),
    "text-classification": Template(
        "text_classification", "reviews", _WORDS, epochs=5, learning_rate=0.002, parameters=_TEXT_FIELDS
    ),
    "two-inputs": Template("two_inputs", "breast_cancer", _TWO_INPUTS, epochs=20, learning_rate=0.003),
    "vit": Template("vit", "fashion_mnist", "limit=20000", epochs=10, learning_rate=0.003, threshold=0.84),
    "wide-deep": Template(
        "wide_deep", "movielens", 'split="time:timestamp"', epochs=4, metric="roc_auc", threshold=0.65
    ),
}

# Projects with files of their own, by template: their folder, and the command before the first run.
PROJECTS = {"image-search": ("image_search", "python draw.py && ")}


@click.command(
    cls=StrictCommand, epilog="Example: kfp-mindspore init my-project && cd my-project && kfp-mindspore run pipeline.py"
)
@click.argument("directory", type=OutputPath())
@click.option(
    "--template",
    type=click.Choice(sorted([*TEMPLATES, *PROJECTS])),
    default="classification",
    show_default=True,
    help="Kind of model.",
)
@add_json_option
def init(directory: Path, template: str, as_json: bool) -> None:
    """Create a runnable project in DIRECTORY, which must be new or empty.

    The project trains a network on a bundled dataset, exports, evaluates and serves it. The pipeline and the service
    are named after DIRECTORY.
    """
    written = write_project(directory, template)
    if as_json:
        print_json({"directory": str(directory), "files": written})
        return
    click.echo(f"{directory}: {', '.join(written)}")
    change = "" if directory.resolve() == Path.cwd().resolve() else f"cd {directory} && "
    first = PROJECTS[template][1] if template in PROJECTS else ""
    click.echo(f"Next: {change}{first}kfp-mindspore run pipeline.py")


def write_project(directory: Path, template: str = "classification") -> list[str]:
    """Create a project atomically in a new or empty directory.

    Args:
        directory: The directory; the pipeline and the service are named after it.
        template: Key in `TEMPLATES` or `PROJECTS`.

    Returns:
        Sorted file names.

    Raises:
        UserError: The name is no valid service name, or the directory cannot be written.
        AlreadyExistsError: The directory is not empty, or is a file.
    """
    project = render_project(directory.resolve().name, template)
    _check_directory(directory)
    if directory.is_dir():
        # Filled in place: it may be the working directory.
        written: list[Path] = []
        try:
            for name, text in project.items():
                files.write_text(directory / name, text)
                written.append(directory / name)
        except BaseException as error:
            for file in written:
                file.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise _make_error(directory, error) from error
            raise
    else:
        try:
            with files.replace_directory(directory, None) as temporary:
                for name, text in project.items():
                    files.write_text(temporary / name, text)
        except OSError as error:
            raise _make_error(directory, error) from error
    return sorted(project)


def render_project(name: str, template: str = "classification") -> dict[str, str]:
    """Return each project file's content by name.

    Args:
        name: Project name; in lower case, with hyphens for underscores, the service name.
        template: Key in `TEMPLATES` or `PROJECTS`.

    Raises:
        UserError: The name is no valid service name.
    """
    if not _NAME.fullmatch(name) or len(name) > _MAXIMUM_NAME:
        raise UserError(
            f"directory: {name!r} is no valid project name: must be at most {_MAXIMUM_NAME} letters, digits, '-' and "
            "'_', starting with a letter and ending with a letter or digit",
            hint="For example: kfp-mindspore init my-project",
        )
    names = {"name": name, "slug": name.lower().replace("_", "-"), "template": template}
    if template in PROJECTS:
        return _render(_TEMPLATES / PROJECTS[template][0], names)
    chosen = TEMPLATES[template]
    # What an image for a cluster needs.
    extras = [
        "all",
        *(["workloads"] if chosen.dataset in _WORKLOAD_SETS else []),
        *([chosen.extra] if chosen.extra else []),
    ]
    literals = chosen.data_options
    for parameter in chosen.parameters:
        literals = re.sub(rf"\b{parameter.name}\b(?!=)", repr(parameter.default), literals)
    values = {
        "extras": ",".join(extras),
        "options": [parameter.name for parameter in chosen.parameters if parameter.is_option],
        "literal_options": literals,
        **names,
        **vars(chosen),
    }
    project = {file: _read_module(chosen.workload, file) for file in ("network.py", "train.py")}
    return project | _render(_TEMPLATES / "project", values)


def _render(folder: Path, values: Mapping[str, Any]) -> dict[str, str]:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(folder), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    project = {}
    for source in environment.list_templates(extensions=["j2"]):
        file = source.removesuffix(".j2")
        project[f".{file}" if file in _HIDDEN else file] = environment.get_template(source).render(values)
    return project


def _read_module(workload: str, file: str) -> str:
    """Return a workload's module as a project's module, where `network` is a module beside it."""
    text = (resources.files(_WORKLOADS) / workload / file).read_text(encoding="utf-8")
    imported = re.search(rf"^from {_WORKLOADS}\.{workload}\.(network import .*\n)", text, re.MULTILINE)
    if imported is None:
        return text
    imports, rest = text.replace(imported[0], "").split("\n\n\n", 1)
    return f"{imports}\n\nfrom {imported[1]}\n\n{rest}"


def _check_directory(directory: Path) -> None:
    if not directory.exists() and not directory.is_symlink():
        return
    if not directory.is_dir():
        raise AlreadyExistsError(f"{directory}: is a file, expected a new or empty directory")
    try:
        names = sorted(entry.name for entry in directory.iterdir() if entry.name not in _IGNORED)
    except OSError as error:
        raise _make_error(directory, error) from error
    if names:
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        raise AlreadyExistsError(
            f"{directory}: must be new or empty, has {shown}", hint="Nothing was written. Choose another directory."
        )


def _make_error(directory: Path, error: OSError) -> UserError:
    return UserError(f"{directory}: cannot be written: {error.strerror or error}")
