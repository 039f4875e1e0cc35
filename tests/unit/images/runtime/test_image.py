import io
import os
import stat
import subprocess
import zipfile
from pathlib import Path

import pytest

from kfp_mindspore.errors import ProcessFailedError, UserError
from kfp_mindspore.images.runtime import wheel as runtime_wheel
from kfp_mindspore.images.runtime.image import (
    BASE_TESTS,
    BASES,
    make_runtime_context,
    make_runtime_options,
    write_runtime_containerfile,
)
from kfp_mindspore.images.runtime.wheel import normalise_wheel, read_constraints, read_wheel
from tests.support.remote import base_images

ROOT = Path(__file__).parents[4]
BASE = "registry.test/python@sha256:" + "d" * 64
NAME = "kfp_mindspore-0.1.0-py3-none-any.whl"


def _make_wheel(time=(2020, 1, 1, 1, 1, 0), mode=0o600, order=1, compression=zipfile.ZIP_DEFLATED) -> bytes:
    files = {
        "kfp_mindspore/__init__.py": b"",
        "kfp_mindspore-0.1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\n",
        "kfp_mindspore-0.1.0.dist-info/RECORD": b"",
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name in list(files)[::order]:
            info = zipfile.ZipInfo(name, time)
            info.external_attr = mode << 16
            archive.writestr(info, files[name], compression)
    return buffer.getvalue()


def test_wheel_is_normalised() -> None:
    one = normalise_wheel(_make_wheel())
    other = normalise_wheel(_make_wheel((2024, 2, 2, 2, 2, 2), 0o644, -1, zipfile.ZIP_STORED))
    assert one == other
    with zipfile.ZipFile(io.BytesIO(one)) as archive:
        assert archive.namelist()[0] == "kfp_mindspore/__init__.py"
        assert {stat.S_IMODE(info.external_attr >> 16) for info in archive.infolist()} == {0o644}


@pytest.mark.parametrize("content", [b"no zip", b""])
def test_other_files_are_refused(content, tmp_path) -> None:
    (tmp_path / "x.whl").write_bytes(content)
    with pytest.raises(UserError, match="wheel: cannot be read"):
        read_wheel(tmp_path / "x.whl")


def test_wheel_of_another_package_is_refused(tmp_path) -> None:
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as archive:
        archive.writestr("other-1.dist-info/WHEEL", "")
    with pytest.raises(UserError, match="not one of kfp-mindspore"):
        read_wheel(tmp_path / "x.whl")


def test_missing_files_are_named(tmp_path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_wheel(tmp_path / "none.whl")
    with pytest.raises(UserError, match="No such file"):
        read_constraints(tmp_path / "none.txt")


def test_failed_build_has_last_lines(tmp_path) -> None:
    (tmp_path / "pyproject.toml").write_text("[build-system]\nrequires = []\nbuild-backend = 'nosuch'\n")
    with pytest.raises(ProcessFailedError, match="the wheel could not be built") as caught:
        runtime_wheel.build_wheel(tmp_path)
    assert caught.value.log


def test_constraints_are_checkouts_or_installed_versions(monkeypatch) -> None:
    assert read_constraints() == (ROOT / "constraints.txt").read_text()
    monkeypatch.setattr(runtime_wheel, "get_checkout", lambda: None)
    lines = read_constraints().splitlines()
    assert all(line.count("==") == 1 for line in lines)
    names = [line.partition("==")[0] for line in lines]
    assert names == sorted(names, key=str.lower)
    assert not any(line.startswith("kfp-mindspore==") for line in lines)


@pytest.mark.slow
def test_wheel_does_not_depend_on_umask() -> None:
    wheels = set()
    for mask in (0o022, 0o077):
        before = os.umask(mask)
        try:
            wheels.add(runtime_wheel.build_wheel(ROOT))
        finally:
            os.umask(before)
    ((name, content),) = wheels
    assert name.startswith("kfp_mindspore-")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        linked = ("components/__init__.py", "operator/install/manifests/crd.yaml")
        assert {"kfp_mindspore/__init__.py", *(f"kfp_mindspore/{path}" for path in linked)} <= set(archive.namelist())


def test_installed_package_needs_wheel(monkeypatch) -> None:
    monkeypatch.setattr(runtime_wheel, "get_checkout", lambda: None)
    with pytest.raises(UserError, match="wheel: must be named") as caught:
        read_wheel()
    assert "pip download --no-deps kfp-mindspore==" in caught.value.hint


def test_plan_has_wheel_extras_and_version(tmp_path) -> None:
    (tmp_path / NAME).write_bytes(_make_wheel())
    (tmp_path / "pins.txt").write_text("numpy==1.26.4\n")
    context = make_runtime_context(tmp_path / NAME, tmp_path / "pins.txt")
    assert [entry.path for entry in context.entries] == ["constraints.txt", NAME]
    options = make_runtime_options(context, "sha256:" + "d" * 64, base="registry.test/python:3.11", extras=("train",))
    assert f'"kfp-mindspore[train] @ file:///source/{NAME}"' in options.containerfile
    assert "FROM registry.test/python:3.11@sha256:" in options.containerfile
    assert options.labels["org.opencontainers.image.title"] == "kfp-mindspore-runtime"


@pytest.mark.parametrize("extra", ["lm", "ray", "mindcv", "mlflow", "all"])
def test_each_extra_can_be_in_image(extra: str, tmp_path) -> None:
    (tmp_path / NAME).write_bytes(_make_wheel())
    context = make_runtime_context(tmp_path / NAME)
    options = make_runtime_options(context, "sha256:" + "d" * 64, extras=("train", extra))
    assert f"kfp-mindspore[{','.join(sorted(('train', extra)))}]" in options.containerfile
    assert options.labels["org.kfp-mindspore.image.extras"] == ",".join(sorted(("train", extra)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"extras": ("gpu",)}, "extras: must be among .* got 'gpu'"),
        ({"device": "tpu"}, "device: must be one of cpu, gpu, ascend, all, got 'tpu'"),
        ({"device": "gpu"}, "base: is missing: device gpu needs an image with CUDA 11.6"),
        ({"device": "ascend"}, "base: is missing: device ascend needs an image with CANN"),
    ],
)
def test_options_are_validated(options, message, tmp_path) -> None:
    (tmp_path / NAME).write_bytes(_make_wheel())
    context = make_runtime_context(tmp_path / NAME)
    with pytest.raises(UserError, match=message):
        make_runtime_options(context, "sha256:" + "d" * 64, **options)


def test_base_keeps_its_search_paths() -> None:
    text = write_runtime_containerfile(BASE, NAME, device="all")
    assert base_images.evaluate_env(text, base_images.CANN_PATHS) == {
        "PATH": "/opt/venv/bin:/usr/local/Ascend/bin:/usr/bin:/bin",
        "LD_LIBRARY_PATH": "/usr/local/Ascend/lib64:/opt/venv/lib",
        "PYTHONPATH": "/usr/local/Ascend/python",
    }
    bare = base_images.evaluate_env(text, {"PATH": "/usr/bin"})
    assert (bare["PATH"], bare["LD_LIBRARY_PATH"]) == ("/opt/venv/bin:/usr/bin", "/opt/venv/lib")


@pytest.mark.parametrize("extras", [(), ("train",), ("kubernetes", "pipelines")])
@pytest.mark.parametrize("device", ["cpu", "gpu", "ascend", "all"])
@pytest.mark.parametrize("pip_secret", [True, False])
def test_image_is_precompiled_pinned_and_unprivileged(extras, device, pip_secret) -> None:
    text = write_runtime_containerfile(BASE, NAME, extras=extras, device=device, pip_secret=pip_secret)
    build, _, final = text.partition(f"\nFROM {BASE}\n")
    assert "--constraint /source/constraints.txt" in build
    assert "--invalidation-mode unchecked-hash" in build
    assert ("plugin/gpu" in build) is (extras == ("train",) and device in ("cpu", "ascend"))
    assert ("plugin/ascend" in build) is (extras == ("train",) and device in ("cpu", "gpu"))
    assert ("the base needs" in build) is (device in ("gpu", "ascend"))
    assert ("libgomp" in build) is (extras == ("train",))
    assert ("type=secret,id=pip," in build) is pip_secret
    assert "USER 1000:1000" in final
    assert "PYTHONDONTWRITEBYTECODE=1" in final
    # The last stage runs nothing, so that no cache and no tool of the first one is left in it.
    assert "RUN" not in final
    for line in build.splitlines():
        if line.startswith("RUN "):
            command = line.removeprefix("RUN ").removeprefix("--mount=type=secret,id=pip,target=/etc/pip.conf ")
            subprocess.run(["sh", "-n"], input=command, text=True, check=True)


@pytest.mark.parametrize("device", ["gpu", "ascend"])
def test_base_without_libraries_ends_build_first(device: str) -> None:
    lines = write_runtime_containerfile(BASE, NAME, device=device).splitlines()
    (number,) = [number for number, line in enumerate(lines) if "the base needs" in line]
    test = lines[number].removeprefix("RUN ")
    assert not any(" install " in line for line in lines[:number])
    done = subprocess.run(
        ["sh", "-c", test], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, f"device {device}: the base needs {BASES[device]}\n")


def test_base_with_libraries_passes(tmp_path: Path) -> None:
    library = tmp_path / "lib64" / "libascendcl.so"
    library.parent.mkdir()
    library.touch()
    done = subprocess.run(["sh", "-c", BASE_TESTS["ascend"]], env={"ASCEND_HOME_PATH": str(tmp_path)}, check=False)
    assert done.returncode == 0
