"""Options for export."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from kfp_mindspore.compat.mindspore_import import get_device
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.rows import EXTRA
from kfp_mindspore.options import check_options, option
from kfp_mindspore.settings import AUTO, CPU, DEVICES

FREE = "free"
TOLERANCE = 1e-5
# On other devices than the CPU, by the outputs' dtype: matrices are multiplied with the 10 bits of TF32 and HF32.
DEVICE_TOLERANCES = {"float32": 1e-3, "float16": 1e-2}
# Metadata that `export_mindir` writes from validated arguments.
_OWN_METADATA = ("dimensions", "encryption", "rows", "transform")


@dataclass(frozen=True)
class ExportOptions:
    r"""Options for export.

    Args:
        batch: The exported graph's batch size; `free`, or a number of at least 1. The graph has this row count.
        sample_count: Held-out samples to compare and keep. They are the first of the dataset's test split.
        network: The network's factory as `module:callable`; default the checkpoint's. In Python also the network.
        network_arguments: The factory's keyword arguments; default the checkpoint's.
        metadata: Texts to keep in the signature.
        tolerance: Largest absolute difference allowed, for outputs up to 1; in proportion for larger ones. Default
            1e-5; on a GPU or NPU 1e-3 for float32 outputs and 1e-2 for float16.
        transform: The served model's transform: a Python file, or a registered name. It is validated, and a file is
            copied into the bundle. It replaces the declared preprocessing and a classification's label; `none` replaces
            them by nothing, so that the server runs the graph alone.
        dimensions: Free dimensions other than the batch by name, and the sizes to pad them to. See
            `formats.model_options.parse_dimensions`; the graph is compared with the network at every size that the
            samples can be padded to.
        extra_columns: Columns in rows to predict that the table did not have: `ignore` or `refuse`.
        rename: Renames of the checkpoint's parameters, PATTERN=REPLACEMENT with a regular expression. They are applied
            in their order to a part of each name, such as `^backbone\.=` or `running_mean$=moving_mean`.
        strategy: A sharded checkpoint's strategy file, or a directory with all stages' files; default its `strategy/`.
        statistics: Whether the bundle has the training data's statistics, which `service drift` compares requests with.
        device: Device to compute on: `auto`, CPU, GPU or Ascend. One that is not there is an error; `auto` takes what
            $KFP_MINDSPORE_DEVICE names, else what MindSpore finds.
        device_id: Number of the device among those that this process sees. [local rank, else 0]
    """

    batch: str | int = FREE
    sample_count: int = option(64, minimum=1)
    network: Any = None
    network_arguments: Mapping[str, Any] | None = None
    metadata: Mapping[str, str] | None = None
    tolerance: float | None = None
    transform: Path | str | None = None
    dimensions: Mapping[str, Any] | None = None
    extra_columns: str = option("ignore", enum=EXTRA)
    rename: Sequence[str] = ()
    strategy: Path | str | None = None
    statistics: bool = True
    device: str = option(AUTO, enum=DEVICES)
    device_id: int | None = option(None, minimum=0)

    def check(self) -> None:
        """Refuse options that no checkpoint fits.

        Raises:
            UserError: The message names the option.
        """
        check_options(self, subject="export_mindir")
        if self.batch != FREE and (isinstance(self.batch, str) or self.batch < 1):
            raise UserError(f"batch: must be 'free' or a number of at least 1, got {self.batch!r}")
        parse_renames(self.rename)
        if reserved := [name for name in _OWN_METADATA if name in (self.metadata or {})]:
            hint = f"Give {reserved[0]} instead." if hasattr(self, reserved[0]) else ""
            raise UserError(f"metadata: {reserved[0]}: is reserved for export", hint=hint)


class ExportChanges(TypedDict, total=False):
    """Fields of `ExportOptions` by keyword."""

    batch: str | int
    sample_count: int
    network: Any
    network_arguments: Mapping[str, Any] | None
    metadata: Mapping[str, str] | None
    tolerance: float | None
    transform: Path | str | None
    dimensions: Mapping[str, Any] | None
    extra_columns: str
    rename: Sequence[str]
    strategy: Path | str | None
    statistics: bool
    device: str
    device_id: int | None


def resolve_tolerance(given: float | None, dtypes: Iterable[str], exporter: str = CPU) -> float:
    """Return the tolerance, by default that of the devices for the outputs' dtypes.

    Args:
        given: The given tolerance.
        dtypes: The outputs' dtypes.
        exporter: The device that computed the outputs to compare with.
    """
    if given is not None:
        return given
    if {exporter, get_device()} <= {"", CPU}:
        return TOLERANCE
    return max((DEVICE_TOLERANCES.get(dtype, TOLERANCE) for dtype in dtypes), default=TOLERANCE)


def parse_renames(renames: Sequence[str]) -> list[tuple[re.Pattern[str], str]]:
    r"""Parse renames.

    Args:
        renames: Such as `^backbone\.=`: a regular expression and its replacement, after the last `=`.

    Raises:
        UserError: One has no `=`, or is no regular expression.
    """
    parsed = []
    for text in renames:
        pattern, separator, replacement = text.rpartition("=")
        if not separator or not pattern:
            raise UserError(f"rename: must be PATTERN=REPLACEMENT, got {text!r}")
        try:
            compiled = re.compile(pattern)
            # A replacement that names a missing group fails only when the pattern matches.
            re.compile(f"{pattern}|").sub(replacement, "")
        except (re.error, IndexError) as error:
            raise UserError(f"rename: {text!r}: not a regular expression and its replacement ({error})") from None
        parsed.append((compiled, replacement))
    return parsed
