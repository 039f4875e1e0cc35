"""Which paths are published models, and what their import reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kfp_mindspore.errors import UserError
from mindsporeserver.models import storage
from mindsporeserver.models.source_import import find_source, import_source


def write(directory: Path, *names: str) -> Path:
    for name in names:
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    return directory


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["config.json", "model.safetensors"], "."),
        (["config.json", "pytorch_model.bin"], "."),
        (["model.gguf", "README.md"], "model.gguf"),
        (["config.json", "model.gguf"], "model.gguf"),
        (["config.json", "model.gguf", "model.safetensors"], "."),
        (["config.json", "signature.json"], None),
        (["1/signature.json"], None),
        (["weights.onnx"], None),
    ],
)
def test_source_is_found(tmp_path: Path, names: list[str], found: str | None) -> None:
    directory = write(tmp_path / "models", *names)
    assert find_source(directory) == (None if found is None else directory / found)


def test_gguf_file_is_its_own_source(tmp_path: Path) -> None:
    write(tmp_path, "a.gguf", "b.gguf", "c.bin")
    assert find_source(tmp_path / "a.gguf") == tmp_path / "a.gguf"
    assert find_source(tmp_path / "c.bin") is None
    assert find_source(tmp_path / "nothing") is None
    with pytest.raises(UserError, match=r"must have one GGUF file, found a\.gguf, b\.gguf") as caught:
        find_source(tmp_path)
    assert str(tmp_path / "a.gguf") in caught.value.hint


def test_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    source = write(tmp_path / "model", "config.json")
    (tmp_path / "cache").write_text("")
    with pytest.raises(UserError, match="cache cannot be written: File exists"):
        import_source(source, tmp_path / "cache")


def test_refusal_of_download_is_importers_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(uri: str, scheme: str, directory: Path) -> None:
        write(directory, "org/config.json")
        (directory / "org/config.json").write_text(json.dumps({"model_type": "mamba"}))

    monkeypatch.setattr(storage.importlib.util, "find_spec", lambda _: True)
    monkeypatch.setattr(storage, "_fetch", fetch)
    message = r"^--model_dir: hf://org/model/config\.json: architecture must be one of gemma3_text, gpt2, "
    with pytest.raises(UserError, match=message) as caught:
        storage.resolve_model("hf://org/model", tmp_path / "cache")
    assert caught.value.exit_code == 2
    assert [path for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []
