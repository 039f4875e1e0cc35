"""Initial weights of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mindspore
import numpy as np
import pytest
from mindspore import nn, ops
from s3fs import S3FileSystem
from sklearn.datasets import load_digits

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, UserError
from kfp_mindspore.training import TrainingConfig, fit, set_seed
from tests.support.models.small_networks import Perceptron
from tests.support.remote.object_store import BUCKET, ObjectStore, start_object_store

pytestmark = pytest.mark.mindspore


class Images(nn.Cell):
    """A small convolutional network."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.SequentialCell(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2, 2), nn.Conv2d(16, 32, 3))
        self.flatten = nn.Flatten()
        self.head = nn.Dense(32 * 16, classes)

    def construct(self, image):
        return self.head(self.flatten(ops.relu(self.features(image))))


def train(images, labels, classes: int, epochs: int, rate: float, **options) -> Images:
    set_seed(3)
    network = Images(classes)
    config = TrainingConfig(epochs=epochs, batch_size=15, verbose=False, **options)
    optimizer = nn.Adam(network.trainable_params(), rate)
    fit(network, (images, labels), loss=nn.CrossEntropyLoss(), optimizer=optimizer, config=config)
    return network


def measure(network: Images, images, labels) -> float:
    network.set_train(False)
    return float((network(mindspore.Tensor(images)).asnumpy().argmax(1) == labels).mean())


def test_fine_tuning_beats_random_weights(tmp_path: Path) -> None:
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    labels = digits.target.astype(np.int32)
    first, few, rest = labels < 5, [], []
    for label in range(5, 10):
        places = np.flatnonzero(labels == label)
        few += [*places[:3]]
        rest += [*places[3:]]
    train(images[first], labels[first], 5, 3, 2e-3, output_dir=tmp_path / "out")

    tuned, fresh = (
        measure(train(images[few], labels[few], 10, 12, 1e-3, **options), images[rest], labels[rest])
        for options in ({"initial": tmp_path / "out" / "checkpoint", "initial_strict": False}, {})
    )

    assert tuned > fresh + 0.1, (tuned, fresh)


def run(network: nn.Cell, **options) -> None:
    random = np.random.default_rng(0)
    data = random.random((32, 1, 8, 8), np.float32), np.zeros(32, np.int32)
    # A rate of 0 leaves the weights as they were loaded.
    optimizer = nn.SGD(network.trainable_params(), 0.0)
    fit(network, data, loss=nn.CrossEntropyLoss(), optimizer=optimizer, config=TrainingConfig(epochs=1, **options))


@pytest.fixture(scope="module")
def object_store() -> Iterator[ObjectStore]:
    with start_object_store() as server:
        server.refuse_strangers()
        yield server


@pytest.fixture
def credentials(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_store.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", object_store.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", object_store.secret)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.mark.parametrize("form", ["net.ckpt", "out/checkpoint"])
def test_weights_in_object_store_are_loaded(
    form: str,
    object_store: ObjectStore,
    credentials: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    run(trained := Perceptron(), output_dir="out")
    mindspore.save_checkpoint(trained, "net.ckpt")
    for file in Path().rglob("*.*"):
        object_store.put(f"weights/{file}", file.read_bytes())
    weights = {item.name: item.asnumpy().copy() for item in trained.trainable_params()}

    run(network := Perceptron(), initial=f"s3://{BUCKET}/weights/{form}")

    for item in network.trainable_params():
        np.testing.assert_array_equal(item.asnumpy(), weights[item.name])
    assert f"starting from s3://{BUCKET}/weights/{form}: 8 parameters\n" in capsys.readouterr().out


def test_unreadable_object_is_refused_with_its_reason(
    object_store: ObjectStore, credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"s3://{BUCKET}/damaged/net.ckpt"
    object_store.put("damaged/net.ckpt", b"\x08\x96\x01 no checkpoint")
    with pytest.raises(UserError, match=f"^{uri}: cannot be read as a checkpoint: it is damaged"):
        run(Perceptron(), initial=uri)
    with pytest.raises(NotFoundError, match=rf"initial: s3://{BUCKET}/nowhere\.ckpt cannot be read: no such object"):
        run(Perceptron(), initial=f"s3://{BUCKET}/nowhere.ckpt")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    S3FileSystem.clear_instance_cache()
    with pytest.raises(KfpMindSporeError, match=f"initial: {uri}") as caught:
        run(Perceptron(), initial=uri)
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint


@pytest.mark.parametrize("form", ["out/checkpoint", "net.ckpt", "net.safetensors", "net.mindir", "memory://a/net.ckpt"])
def test_every_form_of_weights_is_loaded(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    trained, network = Perceptron(), Perceptron()
    weights = {item.name: item.asnumpy().copy() for item in trained.trainable_params()}
    if form.startswith("out"):
        run(trained, output_dir="out")
    elif form.endswith("mindir"):
        trained.set_train(False)
        images = mindspore.ops.zeros((2, 1, 8, 8), mindspore.float32)
        mindspore.export(trained, images, file_name="net", file_format="MINDIR")
    else:
        mindspore.save_checkpoint(trained, name := form.rpartition("/")[2], format=name.rpartition(".")[2])
    if form.startswith("memory"):
        import fsspec

        fsspec.filesystem("memory").pipe_file("/a/net.ckpt", Path("net.ckpt").read_bytes())

    run(network, initial=form, ema=0.9)

    for item in network.trainable_params():
        np.testing.assert_allclose(item.asnumpy(), weights[item.name], atol=1e-6)
    assert f"starting from {form}: 8 parameters\n" in capsys.readouterr().out


def test_layers_that_do_not_fit_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mindspore.save_checkpoint(Perceptron(hidden=8), file := str(tmp_path / "net.ckpt"))

    with pytest.raises(UserError, match=r"first\.weight: \(8, 64\) in the file, \(16, 64\) in the network") as caught:
        run(Perceptron(), initial=file)
    assert "initial_strict=False" in caught.value.hint
    run(Perceptron(), initial=file, initial_strict=False)
    assert "the network's own values of first.weight, first.bias, " in capsys.readouterr().out

    with pytest.raises(UserError, match=r"no value for 1\.weight"):
        run(nn.SequentialCell(nn.Flatten(), nn.Dense(64, 10)), initial=file, initial_strict=False)
    with pytest.raises(NotFoundError, match="nowhere: no such checkpoint"):
        run(Perceptron(), initial="nowhere")


def test_new_head_keeps_its_own_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mindspore.save_checkpoint(trained := Images(5), file := str(tmp_path / "net.ckpt"))
    network, images = Images(10), np.zeros((32, 1, 8, 8), np.float32)
    own = network.head.weight.asnumpy().copy()

    def start(network: nn.Cell, **options) -> None:
        config = TrainingConfig(epochs=1, initial=file, **options)
        optimizer = nn.SGD(network.trainable_params(), 0.0)
        fit(network, (images, np.zeros(32, np.int32)), loss=nn.CrossEntropyLoss(), optimizer=optimizer, config=config)

    start(network, initial_optional="head.*", freeze="features.*")
    np.testing.assert_array_equal(network.features[0].weight.asnumpy(), trained.features[0].weight.asnumpy())
    np.testing.assert_array_equal(network.head.weight.asnumpy(), own)
    printed = capsys.readouterr().out
    assert "2 parameters; the network's own values of head.weight, head.bias\n" in printed
    assert "from epoch 1 frozen (4,752 of 9,882 values): features.*; trained: head.*\n" in printed

    with pytest.raises(UserError, match=r"other shapes, head\.bias: \(5,\) in the file, \(10,\) in the network"):
        start(Images(10), initial_optional="head.weight")
    with pytest.raises(
        UserError, match=r"initial_optional: 'heads\.\*' matches no parameter; found features\.0\.weight"
    ):
        start(Images(10), initial_optional="heads.*")


def test_resumed_run_ignores_initial_weights(tmp_path: Path) -> None:
    run(network := Perceptron(), checkpoint_dir=tmp_path / "checkpoints")
    expected = network.first.weight.asnumpy().copy()

    run(network := Perceptron(), checkpoint_dir=tmp_path / "checkpoints", initial="nowhere")

    np.testing.assert_array_equal(network.first.weight.asnumpy(), expected)


def test_resumed_run_has_its_own_learning_rate(tmp_path: Path) -> None:
    def run(epochs: int, rate: float) -> list[float]:
        random = np.random.default_rng(0)
        data = random.random((32, 1, 8, 8), np.float32), np.zeros(32, np.int32)
        network = Perceptron()
        optimizer = nn.Adam(network.trainable_params(), rate)
        config = TrainingConfig(epochs=epochs, checkpoint_dir=tmp_path / "checkpoints", verbose=False)
        result = fit(network, data, loss=nn.CrossEntropyLoss(), optimizer=optimizer, config=config)
        return [record["learning_rate"] for record in result.history]

    run(1, 0.004)
    assert run(2, 0.001) == pytest.approx([0.004, 0.001])
    # The checkpoint's own rate, which a callback may have lowered, is kept with the same initial one.
    assert run(3, 0.001) == pytest.approx([0.004, 0.001, 0.001])
