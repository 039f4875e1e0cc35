from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import nbformat
import pytest

from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.images import convert_notebook
from kfp_mindspore.images.sources.context import BuildContext
from kfp_mindspore.images.sources.notebook_cell import convert_cell


def _write(folder: Path, *cells: Any, **metadata: Any) -> Path:
    file = folder / "my lenet.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=list(cells), metadata=metadata), file)
    return file


def _code(source: str, *tags: str, **more: Any) -> Any:
    return nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)}, **more)


def _read(context: BuildContext, path: str) -> str:
    (entry,) = [entry for entry in context.entries if entry.path == path]
    return b"".join(entry.read()).decode()


def test_tagged_cells_become_module(tmp_path: Path) -> None:
    output = nbformat.v4.new_output("stream", text="a secret result")
    file = _write(
        tmp_path,
        nbformat.v4.new_markdown_cell("# Title"),
        _code("EPOCHS = 3", "image", outputs=[output], execution_count=7),
        _code("plot()", "explore"),
        _code("print(EPOCHS)\n", "image", "explore"),
    )
    context = convert_notebook(file)
    assert [entry.path for entry in context.entries] == ["my_lenet.py"]
    assert _read(context, "my_lenet.py") == "EPOCHS = 3\n\nprint(EPOCHS)\n"
    assert context.command == ("python3", "my_lenet.py")
    assert _read(convert_notebook(file, tags=["explore"]), "my_lenet.py") == "plot()\n\nprint(EPOCHS)\n"
    assert "plot()" in _read(convert_notebook(file, tags=["*"]), "my_lenet.py")


def test_outputs_and_counts_are_not_in_digest(tmp_path: Path) -> None:
    first = convert_notebook(_write(tmp_path, _code("x = 1", "image"))).layer().digest
    output = nbformat.v4.new_output("stream", text="1")
    again = _code("x = 1", "image", "run", outputs=[output], execution_count=3)
    assert (
        convert_notebook(_write(tmp_path, again, kernelspec={"name": "x", "display_name": "X"})).layer().digest == first
    )


def test_written_files_requirements_and_local_imports_are_collected(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("import numpy\nfrom deep import inner\n")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "__init__.py").write_text("")
    (tmp_path / "deep" / "inner.py").write_text("")
    (tmp_path / "more.txt").write_text("# comment\nscikit-learn>=1.5  # why\n")
    file = _write(
        tmp_path,
        _code("%pip install -q 'mindspore==2.9.0' pandas\n!pip install -r more.txt\n%matplotlib inline", "image"),
        _code("%%writefile conf/settings.py\nBATCH = 32\n", "image"),
        _code("import helper, json, pandas\n%time x = helper\nhelper?", "image"),
    )
    context = convert_notebook(file)
    assert [entry.path for entry in context.entries] == [
        "conf/settings.py",
        "deep/__init__.py",
        "deep/inner.py",
        "helper.py",
        "my_lenet.py",
    ]
    assert context.requirements == ("mindspore==2.9.0", "pandas", "scikit-learn>=1.5")
    assert _read(context, "conf/settings.py") == "BATCH = 32\n"
    assert _read(context, "my_lenet.py") == "pass\npass\npass\n\nimport helper, json, pandas\nx = helper\npass\n"
    notes = "\n".join(context.notes)
    assert "cell 1: pip install became requirements: mindspore==2.9.0 pandas" in notes
    assert "external imports, to be in the base image or the requirements: numpy, pandas" in notes


def test_written_files_alone_make_no_empty_module(tmp_path: Path) -> None:
    context = convert_notebook(_write(tmp_path, _code("%%writefile network.py\nWIDTH = 3\n", "image")))
    assert ([entry.path for entry in context.entries], context.command) == (["network.py"], ())


KEPT = {
    "plain": "x = 7 % 3",
    "a percent sign in a text": "s = '''\n%cd /\n!ls\n'''",
    "a line that goes on": "x = (7\n  % 3)",
    "not ASCII": "s = 'é'; t = 'ü'",
}


@pytest.mark.parametrize("name", KEPT)
def test_plain_python_is_unchanged(name: str) -> None:
    assert convert_cell(KEPT[name], "cell").source == KEPT[name]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("if True:\n    %time y = 2", "if True:\n    y = 2"),
        ("s = 'é'\n%env A=b c", "s = 'é'\nimport os; os.environ['A'] = 'b c'"),
        ("%load_ext autoreload\n%autoreload 2\nx = 1", "pass\npass\nx = 1"),
        ("%%time\nx = 1", "x = 1"),
        ("%%capture out\n%pip install a", "pass"),
    ],
)
def test_magics_are_converted(source: str, expected: str) -> None:
    assert convert_cell(source, "cell").source.strip() == expected


REFUSED = {
    "!ls -l": "the shell line !ls -l",
    "x = !ls": "the value of a magic or shell line",
    "x = %cd": "the value of a magic or shell line",
    "get_ipython()": "get_ipython",
    "get_ipython().run_cell('x')": "get_ipython",
    "%cd /tmp": "%cd has no meaning",
    "%pip freeze": "%pip has no meaning",
    "!pip install -i http://x y": "the option -i",
    "%%bash\nls": "%%bash has no meaning",
    "%%writefile -a x.py\n1": "%%writefile must name one file",
    "def f(:": "cell 3, line 1",
    "!pip install 'x": "No closing quotation",
}


@pytest.mark.parametrize("source", REFUSED)
def test_other_magics_are_refused_with_their_cell(source: str) -> None:
    with pytest.raises(UserError, match=f"cell 3.*{REFUSED[source]}|{REFUSED[source]}") as caught:
        convert_cell(source, "lenet.ipynb, cell 3")
    assert "cell 3" in caught.value.message


def test_missing_tag_lists_known_tags(tmp_path: Path) -> None:
    file = _write(tmp_path, _code("x = 1", "train"), _code("y = 1", "explore"))
    with pytest.raises(UserError, match="no code cell has the tag 'image'; the tags are 'explore', 'train'") as caught:
        convert_notebook(file)
    assert "--cell-tag ('*' for all)" in caught.value.hint
    with pytest.raises(UserError, match="no code cell has the tag 'a' or 'b'; no cell has a tag"):
        convert_notebook(_write(tmp_path, _code("x = 1")), tags=["a", "b"])


def test_cells_without_ids_are_accepted_without_warning(tmp_path: Path) -> None:
    file = _write(tmp_path, _code("x = 1", "image"))
    content = json.loads(file.read_text())
    assert content["nbformat_minor"] >= 5
    del content["cells"][0]["id"]
    file.write_text(json.dumps(content))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _read(convert_notebook(file), "my_lenet.py") == "x = 1\n"


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file"):
        convert_notebook(tmp_path / "none.ipynb")
    broken = tmp_path / "broken.ipynb"
    for content, reason in {
        "{": ": not JSON",
        "\x00": ": not JSON",
        "[]": r" \(",
        '{"nbformat": 4}': r" \(",
    }.items():
        broken.write_text(content)
        with pytest.raises(UserError, match=rf"broken\.ipynb: is not a notebook{reason}"):
            convert_notebook(broken)
    file = _write(tmp_path, _code("1", "image"), kernelspec={"name": "ir", "display_name": "R", "language": "R"})
    with pytest.raises(UserError, match="a notebook of R"):
        convert_notebook(file)


@pytest.mark.parametrize("path", ["../out.py", "/etc/x"])
def test_cell_cannot_write_outside_image_folder(tmp_path: Path, path: str) -> None:
    with pytest.raises(UserError, match="plain relative path"):
        convert_notebook(_write(tmp_path, _code(f"%%writefile {path}\n1", "image")))
