"""The bundled pipelines beside the digits lifecycle: real data, jobs and services."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import httpx
import pytest

from kfp_mindspore.errors import GateNotMetError
from kfp_mindspore.inference import InferenceClient, LocalServingBackend, Service
from kfp_mindspore.runs import run_local
from kfp_mindspore.testing import Lifecycle
from kfp_mindspore.vision.drawings import HELD_OUT_FILE, draw_pictures, write_drawings
from kfp_mindspore.vision.search import PictureIndex
from tests.support.language.tiny_bert import WIDTH, write_bert, write_questions
from tests.support.language.tiny_language_model import write_pairs, write_source
from tests.support.tiny_vision import SPACE, write_clip

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_retraining_deploys_better_model(local_home: Path, lifecycle: Lifecycle) -> None:
    client = InferenceClient(LocalServingBackend(local_home))
    client.deploy(Service("retrained", lifecycle.bundle))
    try:
        # Every accuracy is better by a negative margin.
        arguments = {"epochs": 3, "threshold": 0.5, "margin": -1.0, "service_name": "retrained"}
        result = run_local("retrain_and_promote", arguments, home=local_home, keep=True)
        compared = result.steps["compare-models"].outputs
        assert compared["better"] is True
        assert compared["baseline_value"] > 0.5
        assert result.steps["deploy-kserve"].outputs["deployed"] is True
        assert (result.state, client.get("retrained").version) == ("succeeded", 2)
    finally:
        client.delete("retrained")


@pytest.mark.timeout(600)
def test_compressed_model_replaces_whole_one_by_canary_unless_it_loses_too_much(
    local_home: Path, lifecycle: Lifecycle
) -> None:
    client = InferenceClient(LocalServingBackend(local_home))
    client.deploy(Service("small", lifecycle.bundle))
    arguments = {"epochs": 3, "margin": -1.0, "service_name": "small"}
    try:
        result = run_local("compress_and_deploy", {**arguments, "max_accuracy_lost": 1.0}, home=local_home, keep=True)
        assert (result.state, client.get("small").version) == ("succeeded", 2)
        assert result.steps["compress-model"].outputs["pruned"] >= 0.5
        whole, small = (
            Path(artifact["uri"], "model.mindir").stat().st_size
            for name in ("export-mindir", "export-mindir-2")
            for _, artifact in result.steps[name].list_artifacts("system.Model")
        )
        assert small < 0.75 * whole
        # The training and the export of the whole model are cached.
        arguments |= {"pruned": 0.95, "min_pruned": 0.95, "max_accuracy_lost": 0.0}
        with pytest.raises(GateNotMetError, match="compress-model"):
            run_local("compress_and_deploy", arguments, home=local_home, keep=True)
        assert client.get("small").version == 2
    finally:
        client.delete("small")


def test_tuned_language_model_is_served(local_home: Path, tmp_path: Path) -> None:
    client = InferenceClient(LocalServingBackend(local_home))
    arguments = {
        "source": str(write_source(tmp_path / "source")), "data": str(write_pairs(tmp_path / "pairs.jsonl")),
        "epochs": 6, "learning_rate": 0.05, "length": 64, "held_out": 0.1, "service_name": "chat",
    }  # fmt: skip
    try:
        result = run_local("chat_lora", arguments, home=local_home, keep=True)
        assert result.state == "succeeded"
        evaluated = result.steps["evaluate-language-model"].outputs
        assert evaluated["passed"] is True
        assert evaluated["improvement"] >= 0.2
        assert "2 samples tested" in result.steps["deploy-kserve"].outputs["verdict"]
        body = {
            "model": "chat",
            "messages": [{"role": "user", "content": "dog 7?"}],
            "max_tokens": 4,
            "ignore_eos": True,
        }
        response = httpx.post(f"{client.get('chat').url}/openai/v1/chat/completions", json=body, timeout=120)
        assert response.status_code == 200, response.text
        assert 1 <= response.json()["usage"]["completion_tokens"] <= 4
    finally:
        client.delete("chat")


def test_embedding_model_that_finds_answers_is_served(local_home: Path, tmp_path: Path) -> None:
    client = InferenceClient(LocalServingBackend(local_home))
    write_bert(tmp_path / "source")
    data = str(write_questions(tmp_path / "pairs.jsonl"))
    arguments = {"source": str(tmp_path / "source"), "data": data, "service_name": "search"}
    try:
        result = run_local("semantic_search", arguments, home=local_home, keep=True)
        assert result.state == "succeeded"
        evaluated = result.steps["evaluate-language-model"].outputs
        assert evaluated["value"] == pytest.approx(evaluated["base_value"] + evaluated["improvement"])
        body = {"model": "search", "input": ["quick dogs", "france"]}
        response = httpx.post(f"{client.get('search').url}/openai/v1/embeddings", json=body, timeout=120)
        assert [len(row["embedding"]) for row in response.json()["data"]] == [WIDTH, WIDTH]
    finally:
        client.delete("search")


def test_pictures_are_indexed_and_model_is_served_unless_words_find_more(local_home: Path, tmp_path: Path) -> None:
    client = InferenceClient(LocalServingBackend(local_home))
    write_drawings(tmp_path / "drawings", draw_pictures(1))
    (tmp_path / "drawings/images/broken.png").write_bytes(b"no picture")
    arguments = {
        "source": str(write_clip(tmp_path / "source")), "pictures": str(tmp_path / "drawings"),
        "captions": str(tmp_path / "drawings" / HELD_OUT_FILE), "service_name": "images", "min_improvement": -1.0,
    }  # fmt: skip
    try:
        result = run_local("image_search", arguments, home=local_home, keep=True)
        assert result.state == "succeeded"
        outputs = result.steps["index-pictures"].outputs
        assert (outputs["passed"], outputs["pictures"]) == (True, 180)
        assert 0 <= outputs["words_recall_at_5"] <= 1
        assert "2 samples tested" in result.steps["deploy-kserve"].outputs["verdict"]
        (index,) = (Path(item["uri"]) for _, name, item in result.list_artifacts() if name == "index")
        assert PictureIndex.read(index).skipped.keys() == {"images/broken.png"}
        (report,) = (Path(item["uri"]) for _, name, item in result.list_artifacts() if name == "report")
        assert report.read_text().count("data:image/png;base64,") == 40
        body = {"model": "images", "input": ["a red circle"]}
        response = httpx.post(f"{client.get('images').url}/openai/v1/embeddings", json=body, timeout=120)
        assert len(response.json()["data"][0]["embedding"]) == SPACE
        refused = run_local("image_search", {**arguments, "serve": False}, home=local_home)
        assert "deploy-kserve" not in {name for name, step in refused.steps.items() if step.state == "succeeded"}
        with pytest.raises(GateNotMetError, match="index-pictures"):
            run_local("image_search", {**arguments, "min_improvement": 1.0}, home=local_home)
    finally:
        client.delete("images")


def test_rewriter_is_trained_from_scratch_and_served(local_home: Path, tmp_path: Path) -> None:
    client = InferenceClient(LocalServingBackend(local_home))
    # One completion for all prompts is learnt in seconds; tests/workloads/test_rewriter.py trains on dates and numbers.
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(f'{{"prompt": "on day {day}", "completion": "at 9"}}\n' for day in range(160)))
    arguments = {"data": str(pairs), "epochs": 8, "batch_size": 16, "length": 16, "generated": 8}
    try:
        result = run_local("t5_rewrite", arguments, home=local_home, keep=True)
        assert result.state == "succeeded"
        evaluated = result.steps["evaluate-language-model"].outputs
        assert evaluated["passed"] is True
        assert evaluated["value"] >= 0.9
        assert evaluated["base_value"] == 0
        body = {"model": "rewriter", "prompt": "on day 200"}
        response = httpx.post(f"{client.get('rewriter').url}/openai/v1/completions", json=body, timeout=120)
        assert response.status_code == 200, response.text
        assert response.json()["choices"][0]["text"] == "at 9"
    finally:
        client.delete("rewriter")


def test_batch_prediction_covers_each_sample_once(local_home: Path, lifecycle: Lifecycle) -> None:
    arguments = {"model": str(lifecycle.bundle), "data": str(lifecycle.dataset), "shards": ["1/2", "2/2"]}
    result = run_local("batch_predict", arguments, home=local_home)
    files = [path for path in result.directory.rglob("predictions") if path.is_file()]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert len(files) == 2
    assert sorted(row["index"] for row in rows) == list(range(360))


def test_sources_are_built_before_training(local_home: Path) -> None:
    arguments = {
        "files": {"train.py": "print('trained')\n"},
        "command": [sys.executable, "-m", "kfp_mindspore.workloads.digits.train"],
        "epochs": 2,
        "threshold": 0.5,
    }
    result = run_local("digits_from_sources", arguments, home=local_home)
    assert result.steps["build-image"].outputs["built"] is False
    assert "32 samples tested" in result.steps["deploy-kserve"].outputs["verdict"]


def test_notebook_runs_as_step(local_home: Path) -> None:
    result = run_local(ROOT / "examples" / "notebook_step" / "pipeline.py", {"split": "test"}, home=local_home)
    report = Path(result.steps["describe-dataset"].outputs["report"]["uri"]).read_text()
    rows = [line.strip("| ").split(" | ") for line in report.splitlines() if line.startswith("| ")]
    assert report.startswith("# digits, split test")
    assert sum(int(count) for _, count in rows[1:]) == 360


def test_two_models_are_deployed_as_services(local_home: Path, lifecycle: Lifecycle) -> None:
    arguments = {"first": str(lifecycle.bundle), "second": str(lifecycle.bundle)}
    result = run_local("two_models", arguments, home=local_home)
    assert result.steps["deploy-graph"].outputs["url"] == ""
    assert "digits-b at http://127.0.0.1" in result.steps["deploy-graph"].log.read_text()
