"""Models as images, as `model push` writes them: read by skopeo and umoci from a real registry."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import UserError
from kfp_mindspore.images import RegistryConfig
from kfp_mindspore.images.model_image import push_model
from kfp_mindspore.images.registry.images import inspect_image
from tests.support.remote import base_images, registries
from tests.support.remote.registries import unpack_image

BUNDLE = Path(__file__).parents[2] / "fixtures" / "0.1.0" / "bundle"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with files of a model, one of them below a folder."""
    (tmp_path / "model" / "examples").mkdir(parents=True)
    (tmp_path / "model" / "model.mindir").write_bytes(os.urandom(3000))
    (tmp_path / "model" / "examples" / "one.npz").write_bytes(b"1")
    return tmp_path / "model"


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_image_has_model_alone_in_one_layer(
    folder: Path, registry: registries.Registry, config: RegistryConfig, tmp_path: Path
) -> None:
    name = push_model(folder, f"{registry.host}/models/plain:1", config)
    files, configuration = unpack_image(f"{registry.host}/models/plain:1", tmp_path / "image")
    assert read_files(files) == {f"models/{path}": content for path, content in read_files(folder).items()}
    assert len(configuration["rootfs"]["diff_ids"]) == len(inspect_image(name, config).layers) == 1
    assert name.startswith(f"{registry.host}/models/plain@sha256:")


def test_equal_files_have_equal_digest(
    folder: Path, registry: registries.Registry, config: RegistryConfig, tmp_path: Path
) -> None:
    first = push_model(folder, f"{registry.host}/models/equal:1", config)
    copy = shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)
    (copy / "model.mindir").chmod(0o755)
    assert push_model(copy, f"{registry.host}/models/equal:2", config) == first
    (copy / "model.mindir").write_bytes(b"another")
    assert push_model(copy, f"{registry.host}/models/equal:1", config) != first


def test_model_lies_over_base(
    folder: Path, registry: registries.Registry, config: RegistryConfig, tmp_path: Path
) -> None:
    base = base_images.push_base(registry.host, "models/base", config=config)
    push_model(folder, f"{registry.host}/models/over:1", config, base=base)
    files, configuration = unpack_image(f"{registry.host}/models/over:1", tmp_path / "image")
    assert read_files(folder).items() <= read_files(files / "models").items()
    assert len(configuration["rootfs"]["diff_ids"]) == len(inspect_image(base, config).layers) + 1


@pytest.mark.parametrize(
    ("destination", "message"),
    [
        ("registry.example.com/digits", "destination: must be REGISTRY/NAME:TAG, got 'registry.example.com/digits'"),
        (f"registry.example.com/digits:1@sha256:{'0' * 64}", "destination: must be REGISTRY/NAME:TAG"),
        ("oci://registry.example.com/digits:1", "destination: must be registry/repository:tag, not a URL"),
    ],
)
def test_destination_must_have_tag(destination: str, message: str, folder: Path, config: RegistryConfig) -> None:
    with pytest.raises(UserError) as caught:
        push_model(folder, destination, config)
    assert message in caught.value.message


def test_folder_without_files_is_refused(tmp_path: Path, config: RegistryConfig) -> None:
    with pytest.raises(UserError, match="has no files"):
        push_model(tmp_path, "registry.example.com/digits:1", config)


def test_command_verifies_bundle_and_prints_uri(
    registry: registries.Registry, config: RegistryConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["model", "push", "--insecure", registry.host]
    assert run([*words, str(BUNDLE), f"{registry.host}/models/digits:1", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["model"] == f"oci+native://{printed['image']}"
    base = base_images.push_base(registry.host, "models/shell", config=config)
    assert run([*words, str(BUNDLE), f"{registry.host}/models/digits:2", "--base", base]) == 0
    assert capsys.readouterr().out.startswith(f"oci://{registry.host}/models/digits@sha256:")

    changed = shutil.copytree(BUNDLE, tmp_path / "changed")
    with (changed / "model.mindir").open("ab") as file:
        file.write(b"x")
    assert run([*words, str(changed), f"{registry.host}/models/changed:1"]) != 0
    assert "model.mindir" in capsys.readouterr().err
