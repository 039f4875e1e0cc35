"""Parameter files by any script."""

from __future__ import annotations

import json
import random
from pathlib import Path

import mindspore
import numpy as np
import pytest

from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.mindir.graph.metadata import read_weights
from kfp_mindspore.mindir.parameters.files import (
    find_files,
    load_matching,
    open_checkpoint,
    read_checkpoint,
    read_parameters,
    rename_parameters,
)
from kfp_mindspore.mindir.parameters.shards import is_sharded
from tests.support.models.small_networks import Echo, Perceptron

pytestmark = pytest.mark.mindspore


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def list_weights(network: mindspore.nn.Cell, prefix: str = "", dtype: str = "float32") -> list[dict[str, object]]:
    return [
        {"name": prefix + item.name, "data": mindspore.Tensor(item.asnumpy().astype(dtype))}
        for item in network.get_parameters()
    ]


def save(network: mindspore.nn.Cell, name: str, **options: str) -> Path:
    form = "safetensors" if name.endswith("safetensors") else "ckpt"
    mindspore.save_checkpoint(list_weights(network, **options), name, format=form)
    Path(name).chmod(0o644)
    return Path(name)


def read(path: Path, scratch: Path) -> dict[str, mindspore.Tensor]:
    return read_checkpoint(open_checkpoint(path), scratch)


@pytest.mark.parametrize("name", ["net.ckpt", "net.safetensors"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_parameters_of_file_are_loaded(name: str, dtype: str, tmp_path: Path) -> None:
    trained, network = Perceptron(), Perceptron()
    path = save(trained, name, dtype=dtype)

    mismatch = load_matching(network, read(path, tmp_path), path)

    assert (mismatch.matched, mismatch.describe()) == (8, "")
    for found, expected in zip(network.get_parameters(), trained.get_parameters(), strict=True):
        np.testing.assert_array_equal(found.asnumpy(), expected.asnumpy().astype(dtype).astype("float32"))


def test_file_by_own_reader_equals_mindspores(tmp_path: Path) -> None:
    network = Echo()
    extra = {"name": "bits", "data": mindspore.Tensor([1.5, -2.0], mindspore.bfloat16)}
    mindspore.save_checkpoint([*list_weights(network), extra], "net.ckpt", append_dict={"epoch": 3, "note": "text"})

    stored, expected = read(Path("net.ckpt"), tmp_path), mindspore.load_checkpoint("net.ckpt")

    assert set(stored) == {name for name, value in expected.items() if isinstance(value, mindspore.Tensor)}
    assert stored["scale"].shape == expected["scale"].shape
    np.testing.assert_array_equal(stored["bits"].asnumpy(), [1.5, -2.0])


def test_difference_is_listed_both_ways(tmp_path: Path) -> None:
    path = save(Perceptron(hidden=8), "net.ckpt")
    stored = read(path, tmp_path)
    stored["head.weight"] = stored.pop("second.weight")
    network = Perceptron()
    before = [item.asnumpy().copy() for item in network.get_parameters()]

    with pytest.raises(UserError) as caught:
        load_matching(network, stored, path)

    message = caught.value.message
    assert message.startswith("net.ckpt does not fit the network: no value for second.weight (10, 16); other shapes, ")
    assert message.endswith("; 1 of Perceptron's 8 parameters match")
    assert "first.weight: (8, 64) in the file, (16, 64) in the network" in message
    assert "the file's head.weight (10, 8) have no place" in message
    for item, value in zip(network.get_parameters(), before, strict=True):
        np.testing.assert_array_equal(item.asnumpy(), value)


def test_common_prefix_is_suggested_and_removed(tmp_path: Path) -> None:
    path = save(Perceptron(), "net.ckpt", prefix="model.backbone.")
    stored = read(path, tmp_path)

    with pytest.raises(UserError) as caught:
        load_matching(Perceptron(), stored, path)
    assert caught.value.hint == r"Rename the file's parameters: --rename '^model\.backbone\.='"
    renamed = rename_parameters(stored, [r"^model\.backbone\.="], path)
    assert load_matching(Perceptron(), renamed, path).matched == 8

    with pytest.raises(UserError) as caught:
        load_matching(Perceptron(), {name.split(".", 1)[1]: value for name, value in stored.items()}, path)
    assert caught.value.hint.endswith(r"--rename '^backbone\.='")


def test_missing_prefix_is_suggested(tmp_path: Path) -> None:
    stored = read(save(Perceptron(), "net.ckpt"), tmp_path)
    network = mindspore.nn.SequentialCell(Perceptron())

    with pytest.raises(UserError) as caught:
        load_matching(network, stored, "net.ckpt")

    assert caught.value.hint.endswith("--rename '^=0.'")
    assert load_matching(network, rename_parameters(stored, ["^=0."], Path("net.ckpt")), "net.ckpt").matched == 8


@pytest.mark.parametrize(
    ("renames", "message"),
    [
        (["first"], "must be PATTERN=REPLACEMENT, got 'first'"),
        (["(=x"], "not a regular expression"),
        ([r"first=\3"], "not a regular expression and its replacement"),
        (["third=x"], "'third' matches no parameter in net.ckpt: first.weight"),
        (["^(first|second)=x"], "gives 'first.weight' and 'second.weight' the one name 'x.weight'"),
    ],
)
def test_wrong_rename_is_named(renames: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        rename_parameters(read(save(Perceptron(), "net.ckpt"), tmp_path), renames, Path("net.ckpt"))

    assert message in caught.value.message


def test_newest_checkpoint_of_directory_is_found(tmp_path: Path) -> None:
    for name in ("net-1_10.ckpt", "net-2_9.ckpt", "net-10_3.ckpt", "net-graph.meta"):
        (tmp_path / name).touch()

    assert [file.name for file in find_files(tmp_path)] == ["net-10_3.ckpt"]
    assert not is_sharded(tmp_path)


def test_pieces_of_safetensors_are_one_checkpoint(tmp_path: Path) -> None:
    weights = list_weights(Perceptron())
    (tmp_path / "pieces").mkdir()
    for index, part in enumerate((weights[:3], weights[3:]), 1):
        mindspore.save_checkpoint(part, f"pieces/model-0000{index}-of-00002.safetensors", format="safetensors")

    assert len(read(tmp_path / "pieces", tmp_path)) == 8


def test_directory_without_one_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no checkpoint, and no file is \.ckpt or \.safetensors; it holds nothing"):
        open_checkpoint(tmp_path)
    (tmp_path / "a.ckpt").touch()
    (tmp_path / "b.ckpt").touch()
    with pytest.raises(UserError, match=r"several parameter files without checkpoint\.json: a\.ckpt, b\.ckpt"):
        open_checkpoint(tmp_path)


FILES = {
    "empty.ckpt": (b"", "got an empty file"),
    "torch.pth": (b"PK\x03\x04rest", r"must be a file .ckpt or .safetensors, got '.pth' \(a zip archive, as PyTorch"),
    "torch.ckpt": (b"PK\x03\x04rest", "got a zip archive, as PyTorch"),
    "pickle.ckpt": (b"\x80\x02}q\x00.", "got a Python pickle, as PyTorch writes"),
    "keras.safetensors": (b"\x89HDF\r\n", "got HDF5, as Keras writes"),
    "text.ckpt": (b"no checkpoint", "damaged, incomplete or encrypted"),
    "none.safetensors": (
        b"\x02\x00\x00\x00\x00\x00\x00\x00{}",
        "must be a MindSpore checkpoint .safetensors, got ckpt",
    ),
    "net.mindir": (b"", "a MindIR, which holds a graph"),
}


@pytest.mark.parametrize("name", FILES)
def test_other_files_are_named(name: str, tmp_path: Path) -> None:
    content, message = FILES[name]
    Path(name).write_bytes(content)

    with pytest.raises(UserError, match=message) as caught:
        read(Path(name), tmp_path)

    assert caught.value.message.startswith(name)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["net.ckpt", "net.safetensors"])
def test_damaged_files_are_refused_or_read(name: str, tmp_path: Path) -> None:
    content = save(Perceptron(hidden=2), name).read_bytes()
    source, refused, network = random.Random(5), [], Perceptron(hidden=2)

    for _ in range(150):
        damaged = bytearray(content)
        if source.random() < 0.3:
            del damaged[source.randrange(len(damaged)) :]
        else:
            damaged[source.randrange(400)] ^= 1 << source.randrange(8)
        Path(name).write_bytes(damaged)
        try:
            load_matching(network, read(Path(name), tmp_path), name)
        except UserError as error:
            refused.append(error.message)

    assert len(refused) > 40
    assert all(message.startswith(name) for message in refused)


def test_parameters_of_bundle_and_mindir_are_read(models: Path) -> None:
    weights = read_weights(models / "free")
    for path in (models / "free", models / "free" / "model.mindir", models / "checkpoint"):
        stored = read_parameters(path)
        assert set(stored) == {"dense.weight", "dense.bias"}
        np.testing.assert_array_equal(stored["dense.weight"].asnumpy(), weights["dense.weight"])


def test_foreign_checkpoint_becomes_bundle(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "support" / "models"))
    save(Perceptron(hidden=4), "net.ckpt", prefix="backbone.")
    rows = np.random.default_rng(0).random((9, 1, 8, 8)).round(3)
    Path("rows.json").write_text(json.dumps(rows.tolist()))
    command = ["model", "export", "net.ckpt", "--example", "rows.json", "-o", "model", "--samples", "5"]

    assert run(command) == 2
    assert "net.ckpt: does not record how the network is built" in capsys.readouterr().err
    command += ["--network", "small_networks:Perceptron", "--network-arguments", '{"hidden": 4}']
    assert run(command) == 2
    assert r"--rename '^backbone\.='" in capsys.readouterr().err
    assert run([*command, "--rename", r"^backbone\.="]) == 0

    signature = ModelBundle.open(tmp_path / "model").signature
    assert signature.metadata == {
        "checkpoint": "net.ckpt",
        "network": "small_networks:Perceptron",
        "network_arguments": '{"hidden": 4}',
    }
    assert (signature.verified["samples"], signature.verified["max_abs_diff"]) == (5, pytest.approx(0, abs=1e-6))
    assert run(["model", "predict", "model", "rows.json"]) == 0


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.csv", "a,b\n1,2\n3,x\n", "rows: must be numbers with equal shapes"),
        ("rows.json", '[{"image": [1, 2]}, {"image": [1]}]', "image: must be numbers with equal shapes"),
        ("rows.json", '[{"image": null}]', "image: must be rows of numbers"),
        ("rows.json", "[]", "has no rows"),
        ("rows.npz", "text", "cannot be read as .npz"),
        ("rows.txt", "", "must end in .json"),
    ],
)
def test_wrong_example_is_named(
    name: str, content: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(Perceptron(), "net.ckpt")
    Path(name).write_text(content)

    arguments = ["--network", "small_networks:Perceptron", "--example", name, "-o", "model"]
    assert run(["model", "export", "net.ckpt", *arguments]) == 2

    error = capsys.readouterr().err
    assert name in error
    assert message in error
