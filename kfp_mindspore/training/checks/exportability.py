"""The check before training that the network can be exported afterwards."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mindspore

from kfp_mindspore import files
from kfp_mindspore.canonical import digest_json
from kfp_mindspore.errors import UserError
from kfp_mindspore.mindir.export.graph import UnfitSamplesError, check_exportable
from kfp_mindspore.training import distributed
from kfp_mindspore.training.config import TrainingConfig
from kfp_mindspore.training.distributed import WorkerInfo
from kfp_mindspore.training.samples.data import Source
from kfp_mindspore.training.workers import watchdog

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Passed checks in the home of local state: one empty file each, named by digest.
_DIRECTORY = "exportable"
_KEPT = 200


def check_export(network: Any, source: Source, config: TrainingConfig, worker: WorkerInfo) -> None:
    """Refuse a network that MindSpore cannot export, before the first epoch; collective.

    Rank 0 exports it, within MS_NODE_TIMEOUT (300 s by default), after which the other ranks end. Code and shapes that
    have passed are not checked again. Weights, modes and seeds are as before.
    A network that cannot compute the data is left to the first step, whose message names the mistake.

    Args:
        network: The network.
        source: The training data.
        config: The options; `export_check` is not `off`.
        worker: Rank and world size.

    Raises:
        UserError: It cannot be exported; the message has the layer and the line.
    """
    refused: UserError | None = None
    if worker.is_writer:
        try:
            _check(network, source.sample_inputs(), config)
        except UserError as error:
            refused = error
    if distributed.sum_values(worker, [refused is not None])[0]:
        raise refused or UserError("export_check: worker 0 cannot export the network, see its message")


def _check(network: Any, inputs: Mapping[str, NDArray[Any]], config: TrainingConfig) -> None:
    digest = _compute_digest(network, inputs, config.export_check)
    record = None if digest is None else files.get_home() / _DIRECTORY / digest
    if record is not None and record.is_file():
        return
    begun = time.perf_counter()
    try:
        check_exportable(network, inputs, None if config.export_check == "free" else int(config.export_check))
    except UnfitSamplesError:
        return
    except UserError as error:
        hint = "\n".join((*filter(None, [error.hint]), "TrainingConfig(export_check='off') trains without this check."))
        raise UserError(error.message, hint=hint) from error
    finally:
        # Random operators count their seeds as they are compiled.
        mindspore.set_seed(config.seed)
        watchdog.mark_progress()
    if config.verbose:
        print(f"the network can be exported: checked in {time.perf_counter() - begun:.1f} s", flush=True)
    if record is not None:
        # A read-only home costs the check in each run.
        with contextlib.suppress(OSError):
            _keep(record)


def _keep(record: Path) -> None:
    record.parent.mkdir(parents=True, exist_ok=True)
    record.touch()
    for old in sorted(record.parent.iterdir(), key=lambda file: file.stat().st_mtime)[:-_KEPT]:
        old.unlink(missing_ok=True)


def _compute_digest(network: Any, inputs: Mapping[str, NDArray[Any]], batch: str | int) -> str | None:
    """Return the digest over versions, code, layers with their settings and shapes; None without the code."""
    code = {}
    for module in sorted({type(cell).__module__ for _, cell in network.cells_and_names()} & set(sys.modules)):
        if getattr(sys.modules[module], "__file__", None) is None:
            # Classes in a notebook's cells.
            try:
                for kind in {type(cell) for _, cell in network.cells_and_names() if type(cell).__module__ == module}:
                    code[f"{module}.{kind.__qualname__}"] = inspect.getsource(kind)
            except (OSError, TypeError):
                return None
    for name, file in _list_own_files():
        code[name] = hashlib.sha256(file.read_bytes()).hexdigest()
    description = {
        "versions": [mindspore.__version__, metadata.version("kfp-mindspore")],
        "batch": batch,
        "inputs": [[name, array.dtype.name, array.shape[1:]] for name, array in inputs.items()],
        "layers": [[name, type(cell).__qualname__, *_list_settings(cell)] for name, cell in network.cells_and_names()],
        "parameters": [[item.name, str(item.dtype), item.shape] for item in network.get_parameters()],
        "code": code,
    }
    return digest_json(description)


def _list_own_files() -> Iterator[tuple[str, Path]]:
    """Yield the loaded modules' files outside the installed packages, which a network may call."""
    installed = {Path(path).resolve() for path in sysconfig.get_paths().values()}
    for name, module in sorted(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "")
        if file.suffix == ".py" and file.is_file() and installed.isdisjoint(file.resolve().parents):
            yield name, file


def _list_settings(cell: Any) -> Iterator[list[str]]:
    for name, value in sorted(vars(cell).items()):
        if not name.startswith("_"):
            try:
                yield [name, json.dumps(value, sort_keys=True)]
            except (TypeError, ValueError):
                if isinstance(value, mindspore.Tensor):
                    yield [name, str(value.dtype), str(value.shape)]
