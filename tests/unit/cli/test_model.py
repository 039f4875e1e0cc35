"""`kfp-mindspore model`."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from kfp_mindspore import load_dataset
from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import MissingExtraError
from kfp_mindspore.formats.bundle import ModelBundle
from tests.support.language.numpy_decoder import write_decoder_bundle


@pytest.fixture(autouse=True)
def working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_inspect_bundle(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["model", "inspect", str(models / "free")]) == 0
    text = capsys.readouterr().out
    for part in ("2 weights with 650 values", "1 MatMul", "(-1, 1, 8, 8)", "dataset: digits", "network_arguments:"):
        assert part in text
    assert run(["model", "inspect", str(models / "free"), "--json"]) == 0
    value = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert value["outputs"] == [{"name": "output", "dtype": "float32", "shape": [-1, 10]}]
    assert value["mindir"]["parameters"] == 2


def test_inspect_shows_what_server_computes(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["model", "inspect", str(models / "raw")]) == 0
    lines = capsys.readouterr().out.splitlines()
    for line in (
        "task: classification",
        "labels: 10 (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)",
        "request image: float32 (-1, 1, 8, 8)",
        "preprocessing: Normalize(image)",
        "postprocessing: Label",
    ):
        assert line in lines
    assert run(["model", "inspect", str(models / "raw"), "--json"]) == 0
    value = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (value["task"], value["labels"][-1]) == ("classification", "9")
    assert value["preprocessing"] == ModelBundle.open(models / "raw").read_preprocessing()


def test_language_model_is_inspected_and_answers_no_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_decoder_bundle(tmp_path / "chat")
    sizes = {"vocabulary_size": 43, "max_length": 100000}
    (tmp_path / "chat" / "network.json").write_text(json.dumps(sizes))
    assert run(["model", "inspect", str(tmp_path / "chat")]) == 0
    printed = capsys.readouterr().out
    assert "a language model of the kind causal-lm" in printed
    for line in ("vocabulary_size 43", "max_length 100000", f"weights.safetensors 0 {hashlib.sha256().hexdigest()}"):
        assert line in " ".join(printed.split())
    assert run(["model", "inspect", str(tmp_path / "chat"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["network"] == sizes
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}')
    assert run(["model", "predict", str(tmp_path / "chat"), str(tmp_path / "rows.jsonl")]) == 2
    printed = capsys.readouterr().err
    assert "a language model of the kind causal-lm" in printed
    assert "/openai/v1/chat/completions" in printed


@pytest.mark.parametrize("kind", ["causal-lm-first", "causal-lm-second"])
def test_stage_answers_no_rows(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_decoder_bundle(tmp_path / "stage", kind)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}')
    assert run(["model", "predict", str(tmp_path / "stage"), str(tmp_path / "rows.jsonl")]) == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert f"a language model of the kind {kind}, which answers no rows" in printed
    assert "Serve both stages, and send requests to the first one's /openai/v1/chat/completions" in printed


def test_inspect_mindir_file(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["model", "inspect", str(models / "free" / "model.mindir")]) == 0
    assert "verified" not in capsys.readouterr().out


def test_verify(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["model", "verify", str(models / "free")]) == 0
    assert (
        "model.mindir, statistics.json, verified.npz and signature.json match their digests" in capsys.readouterr().out
    )


@pytest.mark.mindspore
def test_verify_outputs(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["model", "verify", str(models / "free"), "--outputs"]) == 0
    assert "outputs of 64 samples differ by at most 0" in capsys.readouterr().out
    assert run(["model", "verify", str(models / "free"), "--outputs", "--json"]) == 0
    value = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (value["samples"], value["max_abs_diff"]) == (64, 0.0)


@pytest.mark.mindspore
def test_export(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "support" / "models"))
    base = ["model", "export", str(models / "checkpoint"), "--dataset", str(models / "dataset"), "-o", "model"]
    assert run([*base, "--batch", "4", "--samples", "40", "--metadata", "author=a=b", "--json"]) == 0
    value = json.loads(capsys.readouterr().out.splitlines()[-1])
    bundle = ModelBundle.open(tmp_path / "model")
    assert value == {"path": "model", **bundle.signature.to_dict()}
    assert (value["inputs"][0]["shape"], value["verified"]["samples"]) == ([4, 1, 8, 8], 40)
    assert value["metadata"]["author"] == "a=b"
    assert run([*base, "--network-arguments", '{"classes": 10}']) == 0
    assert "model: exported; 64 samples differ by at most" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "nowhere"], "nowhere: no such model directory"),
        (["verify", "empty"], "empty: an empty directory: signature.json and model.mindir missing"),
        (["verify", "flipped"], "flipped/model.mindir: sha256 must be"),
        (["inspect", "flipped/signature.json"], "not a MindIR file"),
        (["export", "empty", "--dataset", "empty", "-o", "out"], "checkpoint.json is missing"),
        (["export", "x", "--dataset", "x", "-o", "out", "--batch", "some"], "must be 'free' or a number"),
        (["export", "x", "--dataset", "x", "-o", "out", "--metadata", "author"], "must be KEY=VALUE, got 'author'"),
        (["export", "x", "--dataset", "x", "-o", "out", "--network-arguments", "{"], "must be JSON, got '{'"),
        (
            ["export", "x", "--dataset", "x", "-o", "out", "--network-arguments", "[]"],
            "network_arguments: must be a dict, got []",
        ),
        (["export", "x", "-o", "out"], "x: no such checkpoint directory or file"),
        (["export", "x", "--dataset", "x", "--example", "x", "-o", "out"], "--dataset, --example: give one of them"),
    ],
)
def test_user_error_exits_2(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    shutil.copytree(models / "free", tmp_path / "flipped")
    file = tmp_path / "flipped" / "model.mindir"
    content = bytearray(file.read_bytes())
    content[100] ^= 4
    file.write_bytes(content)
    assert run(["model", *arguments]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert "Traceback" not in output.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [[], ["export"], ["inspect"], ["verify"]])
def test_help_has_example(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert run(["model", *command, "--help"]) == 0
    assert "Example: kfp-mindspore model" in capsys.readouterr().out


@pytest.mark.mindspore
def test_predict_prints_line_of_json_per_row(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verified = ModelBundle.open(models / "free").read_verified()
    rows = verified.inputs["image"][:3]
    (tmp_path / "rows.json").write_text(json.dumps({"instances": rows.tolist()}))
    assert run(["model", "predict", str(models / "free"), "rows.json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_allclose([line["output"] for line in lines], verified.outputs["output"][:3], atol=1e-5)
    # A CSV has flat rows.
    header = "~".join(f"p{index}" for index in range(64))
    np.savetxt(tmp_path / "rows.csv", rows.reshape(3, 64), delimiter="~", header=header, comments="")
    assert run(["model", "predict", str(models / "free"), "rows.csv", "--json", "--delimiter", "~"]) == 0
    value = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(value["outputs"]["output"], verified.outputs["output"][:3], atol=1e-5)
    raw = ModelBundle.open(models / "raw").read_verified().raw["image"][:2]
    (tmp_path / "raw.json").write_text(json.dumps(raw.tolist()))
    assert run(["model", "predict", str(models / "raw"), "raw.json", "--output", "label"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [list(line) for line in lines] == [["label"]] * 2
    assert run(["model", "predict", str(models / "raw"), "raw.json", "--output", "next"]) == 2
    assert "--output: must be one of output, label, got 'next'" in capsys.readouterr().err
    assert run(["model", "predict", str(models / "transformed"), "rows.json"]) == 2
    assert "--allow_model_code" in capsys.readouterr().err


@pytest.mark.mindspore
def test_export_for_other_inputs_is_one_line_without_hint_at_batch(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    load_dataset("wine", tmp_path / "wine")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "support" / "models"))
    assert run(["model", "export", str(models / "checkpoint"), "--dataset", "wine", "-o", "model"]) == 2
    hint = "Give samples with the inputs that the network was trained on (--dataset, samples=…)."
    error = "Error: wine: the model's preprocessing takes image, got features"
    assert capfd.readouterr().err.splitlines() == [error, hint]
    arguments = ["--dataset", "wine", "--transform", "none", "-o", "model"]
    assert run(["model", "export", str(models / "checkpoint"), *arguments]) == 2
    lines = capfd.readouterr().err.splitlines()
    error, place, advice = lines[-3:]
    assert error.startswith("Error: Classifier: layer dense (Dense) cannot be exported for image of float32 (-1, 13): ")
    assert "64" in error
    assert place.endswith("return self.dense(self.flatten(image))")
    assert advice == hint
    assert not (tmp_path / "model").exists()


def test_inspect_without_mindspore_shows_signature(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kfp_mindspore.mindir.graph.metadata._load_messages", raise_missing)
    assert run(["model", "inspect", str(models / "free")]) == 0
    output = capsys.readouterr().out
    assert "weights and operators: not read, mindspore is not installed. Install it with: pip install" in output
    assert "(-1, 1, 8, 8)" in output
    assert run(["model", "inspect", str(models / "free" / "model.mindir")]) == 2


def raise_missing() -> None:
    raise MissingExtraError("mindspore", "train")
