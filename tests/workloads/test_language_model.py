"""The character language model: better than counts of pairs, and served with the next character of raw texts."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from kfp_mindspore.cli.main import run
from kfp_mindspore.data import read_samples
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.inference import InferenceClient, LocalServingBackend
from kfp_mindspore.runs import run_local

pytestmark = [pytest.mark.workload, pytest.mark.long, pytest.mark.mindspore, pytest.mark.timeout(600)]

SERVICE = "characters"


def compute_bigram_perplexity(dataset: Dataset) -> float:
    """Return the perplexity of the next character's frequency after the current one, with the best added count."""
    pairs = {}
    for split in ("train", "validation", "test"):
        samples = read_samples(dataset, split)
        assert samples.target is not None
        pairs[split] = samples.inputs["text"].ravel(), samples.target.ravel()
    counts = np.zeros((len(dataset.labels),) * 2)
    np.add.at(counts, pairs["train"], 1)

    def compute(added: float, split: str) -> float:
        frequencies = (counts + added) / (counts + added).sum(axis=1, keepdims=True)
        return float(np.exp(-np.log(frequencies[pairs[split]]).mean()))

    return compute(min((0.01, 0.03, 0.1, 0.3, 1), key=lambda added: compute(added, "validation")), "test")


def predict_next(url: str, texts: list[str]) -> list[str]:
    body = json.dumps({"instances": texts}).encode()
    with urllib.request.urlopen(f"{url}/v1/models/{SERVICE}:predict", body, timeout=60) as response:
        return [row["next"] for row in json.loads(response.read())["predictions"]]


def test_pipeline_beats_bigram_model_and_serves_next_character(
    local_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_local("language_model", {"service_name": SERVICE}, home=local_home, keep=True)
    client = InferenceClient(LocalServingBackend(local_home))
    try:
        assert result.state == "succeeded"
        artifacts = {name: artifact["uri"] for _, name, artifact in result.list_artifacts()}
        dataset = Dataset.open(artifacts["dataset"])
        baseline = compute_bigram_perplexity(dataset)
        assert result.steps["evaluate-mindir"].outputs["value"] < 0.8 * baseline

        url = client.get(SERVICE).url
        columns = {name: array[:50] for name, array in dataset.read_columns("test").items()}
        texts = [text.decode() for text in columns["text"]]
        assert result.steps["deploy-kserve"].outputs["label"] == repr(dataset.labels[columns["next"][0, -1]])
        following = [dataset.labels[ids[-1]] for ids in columns["next"]]
        found = predict_next(url, texts)
        hits = np.array(found) == np.array(following)
        assert hits.mean() > 0.3
        # A shorter text is padded in front, of a longer one the end counts.
        shorter = predict_next(url, [text[-20:] for text in texts])
        assert (np.array(shorter) == np.array(following)).mean() > 0.3
        assert predict_next(url, ["x" * 100 + text for text in texts]) == found
        assert predict_next(url, ["And he said unto t", ""])[0] == "h"

        (tmp_path / "rows.json").write_text(json.dumps(texts[:3]))
        capsys.readouterr()
        assert run(["model", "predict", artifacts["bundle"], str(tmp_path / "rows.json"), "--output", "next"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert lines == [{"next": text} for text in found[:3]]
    finally:
        client.delete(SERVICE)


def test_network_is_causal_and_ignores_padding_in_front() -> None:
    import mindspore

    from kfp_mindspore.workloads.language_model.network import Network

    network = Network(size=9, length=8, width=16, heads=2)
    network.set_train(False)

    def compute(ids: list[int]) -> np.ndarray:
        return network(mindspore.Tensor([ids], mindspore.int32)).asnumpy()[0]

    scores = compute([2, 3, 4, 5, 6, 7, 8, 2])
    assert scores.shape == (8, 9)
    np.testing.assert_allclose(compute([2, 3, 4, 5, 6, 8, 8, 8])[:5], scores[:5], atol=1e-5)
    assert np.abs(compute([2, 3, 4, 5, 6, 8, 8, 8])[5] - scores[5]).max() > 1e-3
    np.testing.assert_allclose(compute([0, 0, 0, 2, 3, 4, 5, 6])[3:], scores[:5], atol=1e-5)
