"""The device that MindSpore computes on: what this machine has, and the choice for this process."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import UserError, suggest
from kfp_mindspore.mindir.environment import NETWORK_ERRORS, import_mindspore
from kfp_mindspore.options import option
from kfp_mindspore.settings import (
    ASCEND,
    AUTO,
    CPU,
    DEVICE_ID_VARIABLE,
    DEVICE_VARIABLE,
    DEVICES,
    GPU,
    LOCAL_RANK_VARIABLES,
    LOCAL_SIZE_VARIABLES,
    POD_DEVICE_VARIABLE,
    ROLE_VARIABLE,
    SCHEDULER_ROLE,
)

_logger = logging.getLogger(__name__)

# Below mindspore/lib/plugin, in MindSpore 2.9; the newest CUDA last.
_PLUGINS = {GPU: "libmindspore_gpu.so.*", ASCEND: "libmindspore_ascend.so.*"}
_DEVICE_FILES = {GPU: "dev/nvidia[0-9]*", ASCEND: "dev/davinci[0-9]*"}
_DRIVER_FILES = {GPU: "proc/driver/nvidia/version", ASCEND: "usr/local/Ascend/driver/version.info"}
_DRIVER_VERSION = re.compile(r"\b\d+\.[\w.]+")
# A line of ldd for a library without a path.
_NOT_FOUND = re.compile(r"^\s*(\S+\.so\S*) => (?!/)", re.MULTILINE)
_LDD_SECONDS = 30.0


@dataclass(frozen=True)
class DeviceOptions:
    """The device of a process.

    Args:
        device: Device to compute on: `auto`, CPU, GPU or Ascend. One that is not there is an error; `auto` takes what
            $KFP_MINDSPORE_DEVICE names, else what MindSpore finds.
        device_id: Number of the device among those that this process sees. [local rank, else 0]
    """

    device: str = option(AUTO, enum=DEVICES)
    device_id: int | None = option(None, minimum=0)


@dataclass(frozen=True)
class DeviceState:
    """What MindSpore can use of a device type.

    Args:
        device: CPU, GPU or Ascend.
        count: Devices that MindSpore counts; 0 where it cannot use them.
        plugins: File names of the installed plugins; the CPU needs none.
        missing: Libraries of the newest plugin that the loader does not find.
        driver: The driver's version; empty without a driver.
        files: The machine's device files.
        has_toolkit: Whether CUDA_HOME is set, without which MindSpore 2.9 does not load the plugin for GPUs.
    """

    device: str
    count: int
    plugins: Sequence[str] = ()
    missing: Sequence[str] = ()
    driver: str = ""
    files: Sequence[str] = ()
    has_toolkit: bool = True

    @property
    def reason(self) -> str:
        """Why MindSpore cannot use it; empty if it can."""
        if self.count:
            return ""
        if not self.plugins:
            return f"the installed MindSpore has no {self.device} plugin"
        found = [f"libraries not found: {', '.join(self.missing)}"] if self.missing else []
        found += [] if self.has_toolkit else ["CUDA_HOME is not set"]
        found += [] if self.driver else ["no driver"]
        found += [] if self.files else ["no device files"]
        return "; ".join(found) or "MindSpore counts no device"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the reason."""
        return {**asdict(self), "reason": self.reason}


def inspect_device(device: str, root: Path = Path("/")) -> DeviceState:
    """Return what MindSpore can use of a device type; imports MindSpore.

    Args:
        device: CPU, GPU or Ascend.
        root: The root of the file system.
    """
    if device == CPU:
        return DeviceState(CPU, 1)
    plugins = _list_plugins(device)
    driver = root / _DRIVER_FILES[device]
    version = _DRIVER_VERSION.search(driver.read_text(errors="replace")) if driver.is_file() else None
    return DeviceState(
        device,
        count_devices(device) if plugins else 0,
        [file.name for file in plugins],
        list_missing(plugins[-1]) if plugins else (),
        version[0] if version else "",
        sorted(str(file) for file in root.glob(_DEVICE_FILES[device])),
        has_toolkit=device != GPU or bool(os.environ.get("CUDA_HOME")),
    )


def count_devices(device: str) -> int:
    """Return the number of devices that MindSpore counts."""
    mindspore = import_mindspore()
    if device == CPU:
        return 1
    module = mindspore.device_context.gpu if device == GPU else mindspore.device_context.ascend
    try:
        return int(module.device_count()) if module.is_available() else 0
    except RuntimeError as error:
        _logger.warning("device: %s: %s", device, _get_first_line(error))
        return 0


def list_missing(library: Path) -> list[str]:
    """Return the names of the libraries that a library needs and the loader does not find; nothing is loaded."""
    try:
        listed = subprocess.run(
            ["ldd", str(library)], capture_output=True, text=True, timeout=_LDD_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        _logger.warning("device: the libraries of %s are not listed: %s", library.name, error)
        return []
    return sorted(set(_NOT_FOUND.findall(listed)))


def use_device(device: str = AUTO, device_id: int | None = None) -> str:
    """Choose this process's device, before MindSpore computes; further calls may name the same one.

    The scheduler of a job computes nothing, so that it has the CPU.

    Args:
        device: See `DeviceOptions`.
        device_id: See `DeviceOptions`.

    Returns:
        CPU, GPU or Ascend.

    Raises:
        UserError: The device is unknown or not there, or MindSpore computes on another one already.
    """
    wanted = resolve_name(device, os.environ)
    mindspore = import_mindspore("serving")
    present = str(mindspore.get_context("device_target"))
    chosen = present if wanted == AUTO else wanted
    if wanted == AUTO and present != CPU and not count_devices(present):
        _logger.warning("device: MindSpore has loaded its %s plugin and counts no device", present)
        chosen = CPU
    number = None
    if chosen == CPU:
        choose_id(DeviceState(CPU, 1), device_id, {})
    else:
        number = choose_id(inspect_device(chosen), device_id, os.environ)
    if chosen != present or number not in (None, mindspore.get_context("device_id")):
        try:
            mindspore.set_device(chosen, number)
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"device: {chosen} cannot be set, this process uses {present}: {_get_first_line(error)}",
                hint="Set it before MindSpore computes anything or joins a cluster: use_device() comes first.",
            ) from error
    _announce(chosen, "" if number is None else f" {number}", wanted)
    return chosen


@functools.lru_cache
def _announce(chosen: str, number: str, wanted: str) -> None:
    _logger.info("device: %s%s%s", chosen, number, " (auto)" if wanted == AUTO else "")


def resolve_name(device: str, environ: Mapping[str, str]) -> str:
    """Return the device's name: `auto` is the environment's, if it has one.

    Raises:
        UserError: The name is unknown.
    """
    check_name(device)
    if environ.get(ROLE_VARIABLE) == SCHEDULER_ROLE:
        return CPU
    variables = (DEVICE_VARIABLE, POD_DEVICE_VARIABLE)
    variable = next((name for name in variables if environ.get(name, AUTO) not in ("", AUTO)), "")
    if device != AUTO or not variable:
        return device
    check_name(environ[variable], variable)
    return environ[variable]


def check_name(device: str, field: str = "device") -> None:
    """Raise a UserError for a name that is not one of DEVICES, small letters included."""
    if device not in DEVICES:
        raise UserError(f"{field}: must be one of {', '.join(DEVICES)}, got {device!r}{suggest(str(device), DEVICES)}")


def choose_id(state: DeviceState, device_id: int | None, environ: Mapping[str, str]) -> int | None:
    """Return the number of this process's device; None for MindSpore's own choice, 0 or by its msrun.

    The number counts the devices that the process sees: CUDA_VISIBLE_DEVICES and ASCEND_RT_VISIBLE_DEVICES leave
    some out, and MindSpore counts the others from 0. Without `device_id` it is DEVICE_ID, as msrun sets it, or the
    launcher's local rank.

    Args:
        state: The device type on this machine.
        device_id: The given number.
        environ: This process's environment.

    Raises:
        UserError: There is no such device, or the node has fewer devices than workers.
    """
    if not state.count:
        raise UserError(
            f"device: {state.device} was asked for, and MindSpore cannot use it: {state.reason}",
            hint="`kfp-mindspore devices` shows what it can use; device=auto or CPU needs none.",
        )
    size, rank = _read_number(environ, LOCAL_SIZE_VARIABLES), _read_number(environ, LOCAL_RANK_VARIABLES)
    needed = max(size or 1, (rank or 0) + 1)
    number = device_id if device_id is not None else _read_number(environ, (DEVICE_ID_VARIABLE,))
    if device_id is None and needed > state.count:
        raise UserError(
            f"device: {needed} workers on this node and {state.count} {state.device} device{'s' * (state.count > 1)}: "
            "each needs its own",
            hint="Start as many workers as devices; where each sees one device only, give device_id=0.",
        )
    number = rank if number is None else number
    if number is not None and number >= state.count:
        last = f"0 to {state.count - 1}" if state.count > 1 else "0"
        raise UserError(f"device_id: must be {last} of {state.count} {state.device}, got {number}")
    return number


def has_bfloat16() -> bool:
    """Return whether this process's device multiplies matrices in bfloat16: MindSpore has no list of its kernels."""
    mindspore = import_mindspore()
    ones = mindspore.Tensor([[1.0]], mindspore.bfloat16)
    try:
        return float(mindspore.ops.matmul(ones, ones).astype(mindspore.float32).asnumpy()[0, 0]) == 1
    except NETWORK_ERRORS:
        return False


def set_deterministic() -> None:
    """Let a GPU or NPU repeat a computation bit by bit, until this process ends; a CPU does anyway."""
    mindspore = import_mindspore()
    # MindSpore accepts it once.
    if mindspore.get_context("device_target") != CPU and mindspore.get_context("deterministic") != "ON":
        mindspore.set_deterministic(True)


def is_lost() -> bool:
    """Return whether this process's device, which has computed before, computes no more; False on the CPU."""
    mindspore = import_mindspore()
    if mindspore.get_context("device_target") == CPU:
        return False
    ones = mindspore.Tensor([1.0], mindspore.float32)
    try:
        return float((ones + ones).asnumpy()[0]) != 2
    except RuntimeError:
        return True


def require_cpu(subject: str) -> None:
    """Raise a UserError where this process computes on another device than the CPU.

    Args:
        subject: What is for the CPU only, such as `language models`.
    """
    if resolve_name(AUTO, os.environ) == CPU:
        use_device(CPU)
    device = import_mindspore().get_context("device_target")
    if device != CPU:
        raise UserError(
            f"device: {subject}: for the CPU only, this process uses {device}",
            hint=f"Set {DEVICE_VARIABLE}=CPU, or give the server --device=CPU.",
        )


def _list_plugins(device: str) -> list[Path]:
    found = importlib.util.find_spec("mindspore")
    if found is None or found.origin is None:
        return []
    return sorted((Path(found.origin).parent / "lib" / "plugin").glob(_PLUGINS[device]))


def _read_number(environ: Mapping[str, str], names: Sequence[str]) -> int | None:
    for name in names:
        if value := environ.get(name):
            if not value.isascii() or not value.isdigit():
                raise UserError(f"{name}: must be a whole number, got {value!r}")
            return int(value)
    return None


def _get_first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
