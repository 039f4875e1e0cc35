"""Execute a file's cells, which `# %%` separates, in a Jupyter kernel; print what the last one prints.

Arguments: the file, and JSON that the cells read from the variable ARGUMENTS.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

file, os.environ["ARGUMENTS"] = sys.argv[1:]
cells = [nbformat.v4.new_code_cell(text) for text in Path(file).read_text(encoding="utf-8").split("# %%\n")]
notebook = NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=900, kernel_name="python3").execute()
print("".join(output["text"] for output in notebook.cells[-1].outputs if output.get("name") == "stdout"))
