"""The device of a process: names, what this machine has, ids by rank, and refusals."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from kfp_mindspore.errors import UserError
from kfp_mindspore.mindir import devices, options
from kfp_mindspore.mindir.devices import DeviceState, choose_id, inspect_device, list_missing, resolve_name
from kfp_mindspore.mindir.options import resolve_tolerance

GPUS = DeviceState("GPU", 4, ["libmindspore_gpu.so.11.6"], (), "535.54", ["/dev/nvidia0"])
MPI = {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own: MindSpore keeps its device until exit."""
    environment = {"PATH": "/usr/bin:/bin", "GLOG_v": "4", **variables}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("device", "environ", "expected"),
    [
        ("auto", {}, "auto"),
        ("auto", {"KFP_MINDSPORE_DEVICE": "Ascend"}, "Ascend"),
        ("CPU", {"KFP_MINDSPORE_DEVICE": "GPU"}, "CPU"),
        ("GPU", {}, "GPU"),
        ("GPU", {"MS_ROLE": "MS_WORKER"}, "GPU"),
        ("GPU", {"MS_ROLE": "MS_SCHED"}, "CPU"),
        ("auto", {"MS_ROLE": "MS_SCHED", "KFP_MINDSPORE_DEVICE": "GPU"}, "CPU"),
    ],
)
def test_name_is_given_or_environment(device: str, environ: Mapping[str, str], expected: str) -> None:
    assert resolve_name(device, environ) == expected


@pytest.mark.parametrize(
    ("device", "environ", "message"),
    [
        ("gpu", {}, "device: must be one of auto, CPU, GPU, Ascend, got 'gpu'; did you mean 'GPU'?"),
        ("ASCEND", {}, "did you mean 'Ascend'?"),
        ("tpu", {}, "device: must be one of auto, CPU, GPU, Ascend, got 'tpu'"),
        ("auto", {"KFP_MINDSPORE_DEVICE": "npu"}, "KFP_MINDSPORE_DEVICE: must be one of"),
    ],
)
def test_unknown_name_is_refused(device: str, environ: Mapping[str, str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve_name(device, environ)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("device_id", "environ", "expected"),
    [
        (None, {}, None),
        (3, {}, 3),
        (None, {"DEVICE_ID": "1"}, 1),
        (None, MPI, 2),
        (0, MPI, 0),
        (None, {**MPI, "DEVICE_ID": "3"}, 3),
        (None, {"MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1"}, 1),
        (None, {"LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "3"}, 3),
        # The visible devices are counted by MindSpore, from 0.
        (None, {**MPI, "CUDA_VISIBLE_DEVICES": "4,5,6,7"}, 2),
        (None, {**MPI, "ASCEND_RT_VISIBLE_DEVICES": "4-7"}, 2),
        # A launcher that gives each process its own.
        (0, {**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "8", "CUDA_VISIBLE_DEVICES": "6"}, 0),
    ],
)
def test_id_is_given_or_local_rank(device_id: int | None, environ: Mapping[str, str], expected: int | None) -> None:
    assert choose_id(GPUS, device_id, environ) == expected


@pytest.mark.parametrize(
    ("state", "device_id", "environ", "message"),
    [
        (GPUS, 4, {}, "device_id: must be 0 to 3 of 4 GPU, got 4"),
        (GPUS, None, {"DEVICE_ID": "4"}, "device_id: must be 0 to 3 of 4 GPU, got 4"),
        (DeviceState("CPU", 1), 1, {}, "device_id: must be 0 of 1 CPU, got 1"),
        (
            DeviceState("Ascend", 1),
            None,
            {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0"},
            "device: 2 workers on this node and 1 Ascend device: each needs its own",
        ),
        (GPUS, None, {"LOCAL_RANK": "4"}, "device: 5 workers on this node and 4 GPU devices"),
        (GPUS, None, {"LOCAL_RANK": "x"}, "LOCAL_RANK: must be a whole number, got 'x'"),
        (
            DeviceState("GPU", 0),
            None,
            {},
            "device: GPU was asked for, and MindSpore cannot use it: the installed MindSpore has no GPU plugin",
        ),
    ],
)
def test_wrong_id_is_refused(
    state: DeviceState, device_id: int | None, environ: Mapping[str, str], message: str
) -> None:
    with pytest.raises(UserError) as caught:
        choose_id(state, device_id, environ)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (GPUS, ""),
        (DeviceState("Ascend", 0), "the installed MindSpore has no Ascend plugin"),
        (
            DeviceState("GPU", 0, ["p"], ["libcudnn.so.8"], "535", ["/dev/nvidia0"], has_toolkit=False),
            "libraries not found: libcudnn.so.8; CUDA_HOME is not set",
        ),
        (DeviceState("Ascend", 0, ["p"]), "no driver; no device files"),
        (DeviceState("GPU", 0, ["p"], (), "535", ["/dev/nvidia0"]), "MindSpore counts no device"),
    ],
)
def test_reason_names_what_is_missing(state: DeviceState, reason: str) -> None:
    assert state.reason == reason
    assert state.to_dict()["reason"] == reason


def test_libraries_are_listed_without_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ldd = tmp_path / "ldd"
    ldd.write_text(
        "#!/bin/sh\nprintf '\\tlinux-vdso.so.1 (0x1)\\n\\tlibcuda.so.1 => not found\\n"
        "\\tlibc.so.6 => /lib/libc.so.6 (0x2)\\n"
        "\\tlibcuda.so.1 => nicht gefunden\\n\\t/lib64/ld-linux-x86-64.so.2 (0x3)\\n'\n"
    )
    ldd.chmod(ldd.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list_missing(Path("plugin.so")) == ["libcuda.so.1"]

    ldd.unlink()
    assert list_missing(Path("plugin.so")) == []


def test_driver_and_files_are_found(tmp_path: Path) -> None:
    driver = tmp_path / "proc/driver/nvidia/version"
    driver.parent.mkdir(parents=True)
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6\nGCC version: gcc 12.2\n")
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "davinci3", "davinci_manager"):
        (tmp_path / "dev" / name).touch()
    assert (inspect_device("GPU", tmp_path).driver, len(inspect_device("GPU", tmp_path).files)) == ("535.54.03", 2)
    assert inspect_device("Ascend", tmp_path).driver == ""
    assert len(inspect_device("Ascend", tmp_path).files) == 1


def test_missing_device_is_refused_before_work() -> None:
    if devices.count_devices("GPU"):
        pytest.skip("this machine has a GPU that MindSpore can use")
    code = "from kfp_mindspore.mindir.devices import use_device; use_device({!r})"
    done = run(code.format("GPU"))
    assert "device: GPU was asked for, and MindSpore cannot use it: " in done.stderr
    # The variable of a job's pods: `auto` does not compute on the CPU in its place.
    done = run(code.format("auto"), KFP_MINDSPORE_DEVICE="GPU")
    assert "device: GPU was asked for" in done.stderr


def test_auto_says_which_device_it_takes() -> None:
    code = (
        "import logging; logging.basicConfig(level='INFO');"
        "from kfp_mindspore.mindir.devices import use_device;"
        "print(use_device(), use_device(), use_device('CPU', 0))"
    )
    done = run(code)
    if devices.count_devices("GPU") or devices.count_devices("Ascend"):
        pytest.skip("this machine has a device that MindSpore can use")
    assert done.stdout == "CPU CPU CPU\n"
    assert done.stderr.count("device: CPU (auto)") == 1


def test_cpu_process_loads_no_device_library() -> None:
    code = (
        "import sys; import kfp_mindspore.mindir.devices as d; assert 'mindspore' not in sys.modules;"
        "d.use_device(); print([line for line in open('/proc/self/maps') if 'libcuda' in line or 'ascendcl' in line])"
    )
    if devices.count_devices("GPU") or devices.count_devices("Ascend"):
        pytest.skip("this machine has a device that MindSpore can use")
    assert run(code).stdout == "[]\n"


def test_cpu_has_no_bfloat16_and_is_never_lost() -> None:
    code = "from kfp_mindspore.mindir.devices import *; use_device('CPU'); print(has_bfloat16(), is_lost())"
    assert run(code).stdout == "False False\n"


def test_language_models_are_refused_on_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    devices.require_cpu("language models")
    # No card is asked: only the answer of MindSpore's context is another.
    monkeypatch.setattr(devices, "import_mindspore", lambda: SimpleNamespace(get_context=lambda name: "GPU"))
    with pytest.raises(UserError, match="device: language models: for the CPU only, this process uses GPU"):
        devices.require_cpu("language models")


@pytest.mark.parametrize(
    ("device", "given", "dtypes", "expected"),
    [
        ("CPU", None, ["float32"], 1e-5),
        ("", None, ["float16"], 1e-5),
        ("GPU", None, ["float32", "int32"], 1e-3),
        ("Ascend", None, ["float16", "float32"], 1e-2),
        ("GPU", None, ["int64"], 1e-5),
        ("GPU", None, [], 1e-5),
        ("GPU", 1e-6, ["float16"], 1e-6),
        ("CPU", 0.0, ["float32"], 0.0),
    ],
)
def test_tolerance_is_of_device_and_dtype(
    device: str, given: float | None, dtypes: list[str], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "get_device", lambda: device)
    assert resolve_tolerance(given, dtypes) == expected
    if device == "CPU":
        # Outputs that a GPU has computed are compared with its tolerance.
        assert resolve_tolerance(given, dtypes, "GPU") == (1e-3 if given is None else given)
