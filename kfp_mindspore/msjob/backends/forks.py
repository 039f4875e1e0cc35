"""MindSpore imported once in a job's supervisor, from which the job's members are forked.

Only members that would import the same: `python script` or `python -m module` with the word mindspore in its source,
and the same variables of Python, the C library, BLAS and MindSpore. Others start as new processes.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

from kfp_mindspore.compat.mindspore_import import import_mindspore
from kfp_mindspore.local.fork import fork_child, is_single_threaded, list_import_path
from kfp_mindspore.local.process import ForkedProcess, ProcessSpec
from kfp_mindspore.local.reads import get_recorder
from kfp_mindspore.msjob.commands import is_python_program
from kfp_mindspore.msjob.decisions.topology import VARIABLES
from kfp_mindspore.settings import FORK_VARIABLE, ROLE_VARIABLE, SCHEDULER_ROLE, THREADS_VARIABLE, TOPOLOGY_DEFAULTS

# Read when a process starts, and when MindSpore or a library below it is imported.
_START_PREFIXES = ("GLIBC_", "LANG", "LC_", "LD_", "MALLOC_", "PYTHON")
_IMPORT_PREFIXES = (
    "ASCEND",
    "DEVICE_",
    "DNNL_",
    "GLOG_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "MS_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
)
# What each training process imports; kserve starts a thread at import.
_MODULES = ("mindspore.communication", "mindspore.train", "kfp_mindspore.training.run")
_SUFFIXES = tuple(importlib.machinery.all_suffixes())


class WarmInterpreter:
    """This process as the template of a job's members."""

    def __init__(self) -> None:
        self._started = dict(os.environ)
        # The import's variables, once MindSpore is imported.
        self._imported: dict[str, str] | None = None
        self._is_usable = sys.platform == "linux" and os.environ.get(FORK_VARIABLE) != "0"

    def prepare(self, spec: ProcessSpec) -> None:
        """Import MindSpore as a worker would, unless that is done, or the worker does not use it."""
        if self._imported is not None or not self._can_run(spec) or not _mentions_mindspore(spec):
            return
        wanted = select_variables(spec.environment, _IMPORT_PREFIXES)
        for name in select_variables(os.environ, _IMPORT_PREFIXES):
            del os.environ[name]
        os.environ.update(wanted)
        try:
            import_mindspore()
            for name in _MODULES:
                importlib.import_module(name)
        except Exception:  # noqa: BLE001 - whatever the import raises, the members' logs show it
            traceback.print_exc()
            self._is_usable = False
        self._imported = wanted

    def fork(self, spec: ProcessSpec, log: Path) -> ForkedProcess | None:
        """Start a member.

        Args:
            spec: The member's process.
            log: The member's log.

        Returns:
            The process; None if it must be started as a new one.

        Raises:
            OSError: It could not be started.
        """
        if self._imported is None or not self._can_run(spec):
            return None
        # A scheduler computes nothing.
        ignored = {THREADS_VARIABLE} if spec.environment.get(ROLE_VARIABLE) == SCHEDULER_ROLE else set()
        wanted = select_variables(spec.environment, _IMPORT_PREFIXES)
        if any(wanted.get(name) != self._imported.get(name) for name in {*wanted, *self._imported} - ignored):
            return None
        return fork_child(spec.argv, cwd=spec.cwd, env=spec.environment, log=log) if is_single_threaded() else None

    def _can_run(self, spec: ProcessSpec) -> bool:
        return (
            self._is_usable
            and is_python_program(spec.argv)
            and spec.cwd.is_dir()
            and select_variables(spec.environment, _START_PREFIXES) == select_variables(self._started, _START_PREFIXES)
            and not any(map(_shadows_imported, _list_folders(spec)))
        )


def select_variables(environment: Mapping[str, str], prefixes: tuple[str, ...]) -> dict[str, str]:
    """Return the variables with these prefixes, without a job's topology and the import path."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(prefixes)
        and name not in VARIABLES
        and name not in TOPOLOGY_DEFAULTS
        and name != "PYTHONPATH"
    }


def _get_program(spec: ProcessSpec) -> tuple[str, str]:
    """Return a Python command line's script and module, one of them empty."""
    words = list(spec.argv[1:])
    while words[0] == "-u":
        del words[0]
    return ("", words[1]) if words[0] == "-m" else (words[0], "")


def _list_folders(spec: ProcessSpec) -> Iterator[Path]:
    """Return the folders that the member searches for modules before Python's own."""
    script, _ = _get_program(spec)
    yield (spec.cwd / script).resolve().parent if script else spec.cwd
    recorder = get_recorder(spec.environment)
    for entry in list_import_path(spec.environment, spec.cwd):
        if recorder is None or Path(entry) != recorder.parent:
            yield Path(entry)


def _mentions_mindspore(spec: ProcessSpec) -> bool:
    script, module = _get_program(spec)
    if "mindspore" in module:
        return True
    path = module.replace(".", "/")
    names = [script] if script else [f"{path}.py", f"{path}/__main__.py"]
    files = (folder / name for folder in (spec.cwd, *_list_folders(spec)) for name in names)
    return any(b"mindspore" in file.read_bytes() for file in files if file.is_file())


def _shadows_imported(folder: Path) -> bool:
    """Return whether a folder has a module that would be imported instead of one that this process has imported."""
    if not folder.is_dir():
        # An archive.
        return folder.exists()
    for entry in folder.iterdir():
        name = entry.name.partition(".")[0]
        is_module = entry.name.endswith(_SUFFIXES) or (entry / "__init__.py").is_file()
        if name in ("sitecustomize", "usercustomize") and is_module:
            return True
        file = getattr(sys.modules.get(name), "__file__", None)
        if is_module and file is not None and not Path(file).is_relative_to(folder):
            return True
    return False
