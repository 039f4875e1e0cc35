"""Encrypted models: keys, errors of wrong keys, and that no plain content reaches the disk."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import CorruptBundleError, UserError
from kfp_mindspore.formats.bundle import MODEL_FILE, ModelBundle, write_bundle
from kfp_mindspore.mindir import GraphRunner, evaluate_bundle, export_mindir, verify_bundle
from kfp_mindspore.mindir.graph.encryption import load_graph, read_model_key
from kfp_mindspore.mindir.graph.metadata import inspect_mindir
from kfp_mindspore.settings import MODEL_KEY_VARIABLE

KEY = bytes(range(32))


# ---- reading keys


def write_key(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (KEY, KEY),
        (KEY[:16], KEY[:16]),
        (KEY[:24], KEY[:24]),
        (b"0123456789abcdef\n", b"0123456789abcdef"),
        (b"0123456789abcdef\r\n", b"0123456789abcdef"),
        (b"\n" * 16, b"\n" * 16),
        (KEY.hex().encode(), KEY),
        (KEY.hex().upper().encode() + b"\n", KEY),
        (KEY[:24].hex().encode(), KEY[:24]),
        # 32 digits are 32 bytes, with and without a line end: one text stands for one key.
        (KEY[:16].hex().encode(), KEY[:16].hex().encode()),
        (KEY[:16].hex().encode() + b"\n", KEY[:16].hex().encode()),
    ],
)
def test_valid_keys(tmp_path: Path, content: bytes, key: bytes) -> None:
    assert read_model_key(write_key(tmp_path / "key", content), {}) == key
    if b"\0" not in content:
        assert read_model_key(None, {MODEL_KEY_VARIABLE: os.fsdecode(content)}) == key


def test_no_key() -> None:
    assert read_model_key(None, {}) is None
    assert read_model_key(None, {MODEL_KEY_VARIABLE: ""}) is None


def test_file_has_precedence_over_variable(tmp_path: Path) -> None:
    file = write_key(tmp_path / "key", KEY)
    assert read_model_key(file, {MODEL_KEY_VARIABLE: "x"}) == KEY


@given(content=st.binary(max_size=80))
def test_error_never_contains_key(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = write_key(tmp_path_factory.getbasetemp() / "key", b"secret" + content)
    message = ""
    try:
        key = read_model_key(file, {})
    except UserError as error:
        message = str(error)
    else:
        assert len(key or b"") in (16, 24, 32)
    if message:
        assert message.startswith(f"{file}: key: must be 16, 24 or 32 bytes, got ")
        assert "secret" not in message.replace(str(file), "")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "got 0 bytes"), (b"short", "got 5 bytes"), (b"g" * 64, "got 64 bytes"), (b"x" * 10_000, "got 4096 bytes")],
)
def test_invalid_lengths(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_model_key(write_key(tmp_path / "key", content), {})
    if content:
        with pytest.raises(UserError, match=r"^MINDSPORE_MODEL_KEY: key: must be 16, 24 or 32 bytes"):
            read_model_key(None, {MODEL_KEY_VARIABLE: content.decode()})


def test_unreadable_key_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: key file: No such file or directory"):
        read_model_key(tmp_path / "nowhere", {})
    with pytest.raises(UserError, match="key file: Is a directory"):
        read_model_key(tmp_path, {})


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o440, False), (0o644, True), (0o660, True)])
def test_key_file_readable_by_others_causes_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: bool
) -> None:
    file = write_key(tmp_path / "key", KEY.hex().encode(), mode)
    with caplog.at_level(logging.WARNING):
        assert read_model_key(file, {}) == KEY
    assert bool(caplog.records) is warned
    if warned:
        assert f"{file}: key file: its mode is {mode:04o}" in caplog.text
        assert KEY.hex() not in caplog.text


# ---- encrypted models


pytestmark = pytest.mark.mindspore


@pytest.fixture(autouse=True)
def _directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(MODEL_KEY_VARIABLE, raising=False)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "support" / "models"))


def test_outputs_equal_those_of_plain_model(models: Path) -> None:
    bundle, plain = ModelBundle.open(models / "encrypted"), ModelBundle.open(models / "free")
    assert (bundle.signature.encryption, plain.signature.encryption) == ("AES-GCM", "")
    inputs = plain.read_verified().inputs
    with GraphRunner(bundle, warm=(), key=KEY) as runner, GraphRunner(plain, warm=()) as other:
        np.testing.assert_array_equal(runner.predict(inputs)["output"], other.predict(inputs)["output"])
    assert verify_bundle(models / "encrypted", outputs=True, key=KEY).max_abs_diff == 0
    assert evaluate_bundle(models / "encrypted", models / "dataset", key=KEY).value > 0.9
    assert verify_bundle(models / "encrypted").samples == 0
    info, expected = inspect_mindir(bundle.mindir, key=KEY), inspect_mindir(plain.mindir)
    assert (info.operators, info.inputs) == (expected.operators, expected.inputs)


def test_no_plain_content_is_written(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import tempfile

    from kfp_mindspore.mindir.export import checkpoint as module

    plain = (models / "free" / MODEL_FILE).read_bytes()
    seen: dict[Path, bytes] = {}

    def read_all(directory: Path) -> None:
        seen.update({file: file.read_bytes() for file in directory.rglob("*") if file.is_file()})

    inspect, compare = module.inspect_mindir, module._compare
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setattr(
        module, "inspect_mindir", lambda file, **options: (read_all(scratch), inspect(file, **options))[1]
    )
    monkeypatch.setattr(
        module, "_compare", lambda directory, *arguments: (read_all(directory), compare(directory, *arguments))[1]
    )
    key = os.urandom(24)
    bundle = export_mindir(models / "checkpoint", tmp_path / "out" / "model", dataset_dir=models / "dataset", key=key)
    read_all(tmp_path)
    weights = plain[plain.index(b"dense.weight") :][:200]
    written = {MODEL_FILE, "preprocessing.json", "statistics.json", "verified.npz", "signature.json"}
    assert {file.name for file in seen} == written
    assert len([file for file in seen if file.name == MODEL_FILE]) == 3
    assert all(b"dense.weight" not in content and weights not in content for content in seen.values())
    assert all(key not in content and key.hex().encode() not in content for content in seen.values())
    assert key.hex() not in caplog.text
    assert bundle.signature.metadata["encryption"] == "AES-GCM"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (None, r"model.mindir: is encrypted \(AES-GCM\), and no key is given\nGive the key .*MINDSPORE_MODEL_KEY"),
        (KEY[:16], "model.mindir: cannot be decrypted: the key is not the one it was exported with"),
        (bytes(32), "model.mindir: cannot be decrypted: the key is not the one it was exported with"),
        (b"short", "key: must be 16, 24 or 32 bytes, got 5 bytes"),
    ],
)
def test_missing_and_wrong_keys(models: Path, key: bytes | None, message: str) -> None:
    bundle = ModelBundle.open(models / "encrypted")
    for call in (
        lambda: load_graph(bundle, key),
        lambda: inspect_mindir(bundle.path, key=key),
    ):
        with pytest.raises(UserError, match=message) as raised:
            call()
        assert "short" not in str(raised.value)
    with pytest.raises(UserError, match="key"):
        verify_bundle(bundle.path, outputs=True, key=key)


def test_plain_model_ignores_key(models: Path) -> None:
    bundle = ModelBundle.open(models / "free")
    assert load_graph(bundle, bytes(32)) is not None
    assert inspect_mindir(bundle.path, key=KEY).parameters == 2
    assert verify_bundle(bundle.path, outputs=True, key=KEY).max_abs_diff == 0


@pytest.mark.parametrize(("method", "error"), [("", "MindSpore cannot load it"), ("SM4-CBC", "must be AES-GCM")])
def test_signature_with_another_method(models: Path, tmp_path: Path, method: str, error: str) -> None:
    bundle = ModelBundle.open(models / "encrypted")
    with write_bundle(tmp_path / "model") as writer:
        shutil.copy(bundle.mindir, writer.directory)
        signature = bundle.signature
        metadata = {**signature.metadata, "encryption": method}
        writer.sign(type(signature)(signature.inputs, signature.outputs, "2.9.0", metadata=metadata))
    with pytest.raises(UserError, match=error):
        load_graph(ModelBundle.open(tmp_path / "model"), KEY)


def test_changed_file_has_another_digest(models: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(models / "encrypted", tmp_path / "model"))
    content = bytearray((damaged / MODEL_FILE).read_bytes())
    content[len(content) // 2] ^= 1
    (damaged / MODEL_FILE).write_bytes(content)
    with pytest.raises(CorruptBundleError, match=r"model.mindir: sha256"):
        verify_bundle(damaged, key=KEY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": b"short"}, "key: must be 16, 24 or 32 bytes, got 5 bytes"),
        ({"key": KEY.hex()}, "key: must be 16, 24 or 32 bytes, got str"),
        ({"metadata": {"encryption": "none"}}, "metadata: encryption: is reserved for export"),
    ],
)
def test_invalid_options_of_export(models: Path, tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        export_mindir(models / "checkpoint", tmp_path / "model", dataset_dir=models / "dataset", **options)
    assert KEY.hex() not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


# ---- the command


def test_commands(models: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    file = write_key(Path("model.key"), KEY.hex().encode())
    base = ["model", "export", str(models / "checkpoint"), "--dataset", str(models / "dataset"), "-o", "model"]
    assert run([*base, "--key-file", "model.key"]) == 0
    assert "model: exported, encrypted (AES-GCM); 64 samples differ by at most 0" in capfd.readouterr().out
    assert run(["model", "verify", "model"]) == 0
    assert run(["model", "verify", "model", "--outputs", "--key-file", "model.key"]) == 0
    assert run(["model", "inspect", "model"]) == 0
    text = capfd.readouterr().out
    assert "bytes\nweights and operators: encrypted (AES-GCM), set --key-file" in text
    assert "(-1, 1, 8, 8)" in text
    assert run(["model", "inspect", "model", "--key-file", "model.key"]) == 0
    assert "2 weights with 650 values" in capfd.readouterr().out
    assert run(["model", "inspect", "model", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["mindir"] is None
    assert run(["model", "verify", "model", "--outputs"]) == 2
    assert "is encrypted (AES-GCM), and no key is given" in capfd.readouterr().err
    assert run(["model", "inspect", "model/model.mindir"]) == 2
    assert "is encrypted (AES-GCM), and no key is given" in capfd.readouterr().err
    monkeypatch.setenv(MODEL_KEY_VARIABLE, KEY.hex())
    assert run(["model", "verify", "model", "--outputs"]) == 0
    monkeypatch.setenv(MODEL_KEY_VARIABLE, "another key, and the wrong one. ")
    assert run(["model", "verify", "model", "--outputs"]) == 2
    captured = capfd.readouterr()
    assert "cannot be decrypted" in captured.err
    assert "another key" not in captured.out + captured.err
    file.unlink()
    assert run(["model", "verify", "model", "--key-file", "model.key"]) == 2
    assert "model.key: key file: No such file" in capfd.readouterr().err
