"""The check before training that the network can be exported: results of export_scenarios.py, in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.mindspore_processes import MindSporeProcesses, start_gang

pytestmark = [pytest.mark.mindspore, pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).parents[1] / "export_scenarios.py"
NETWORKS = Path(__file__).parents[3] / "support" / "models" / "sequence_networks.py"
CHECKED = "the network can be exported"


@pytest.fixture(scope="module")
def results(mindspore_processes: MindSporeProcesses, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("exports")
    process = mindspore_processes.start([SCRIPT, root], root, environment={"KFP_MINDSPORE_HOME": str(root)})
    code, output = process.finish(850)
    assert code == 0, output[-5000:]
    found: dict[str, Any] = json.loads((root / "results.json").read_text())
    return found


@pytest.mark.parametrize(
    ("name", "layer", "code"),
    [
        ("GRU", "Gated: layer rnn (GRU)", "outputs, _ = self.rnn(x, seq_length=lengths)"),
        ("LSTM", "Gated: layer rnn (LSTM)", "outputs, _ = self.rnn(x, seq_length=lengths)"),
        (
            "Transformer",
            "Masked: layer encoder.layers.0.self_attn (MultiheadAttention)",
            "encoded = self.encoder(self.embed(x), src_key_padding_mask=mask)",
        ),
        ("own", "Nested: layer blocks.1.1 (Limited)", 'raise ValueError("too many rows")'),
    ],
)
def test_network_that_cannot_be_exported_is_refused_before_first_epoch(
    results: dict[str, Any], name: str, layer: str, code: str
) -> None:
    found = results["refused"][name]
    assert (found["code"], found["epochs"]) == (2, 0)
    message, place, advice, *_ = found["lines"]
    assert message.startswith(f"{layer} cannot be exported with a free batch: it raises ValueError on a condition")
    number = NETWORKS.read_text().splitlines().index(next(x for x in NETWORKS.read_text().splitlines() if code in x))
    assert place == f"{NETWORKS}:{number + 1}: {code}"
    assert "docs/your-own-model.md#sequences" in advice
    assert not any("C++" in line or "mindspore/ccsrc" in line for line in found["lines"])


def test_graph_that_runs_with_one_batch_size_only_is_refused(results: dict[str, Any]) -> None:
    found = results["refused"]["branch"]
    assert (found["code"], found["epochs"]) == (2, 0)
    assert found["lines"][0].startswith("Branch is exported, but its MindIR cannot be loaded and run: The actor")
    assert "ops.where" in found["lines"][1]


def test_graph_whose_output_keeps_first_batch_size_is_refused(results: dict[str, Any]) -> None:
    found = results["refused"]["whole"]
    assert (found["code"], found["epochs"]) == (2, 0)
    assert found["lines"][0] == "Whole is exported, but its MindIR returns 5 rows for a batch of 7"
    assert "docs/your-own-model.md#sequences" in found["lines"][1]


def test_network_that_does_not_fit_its_data_is_reported_by_first_step(results: dict[str, Any]) -> None:
    found = results["refused"]["unfit"]
    assert found["code"] == 2
    assert found["lines"][0].startswith(
        "Unfit: layer layers (SequentialCell) cannot be computed for a batch of x (16, 4)"
    )
    assert found["lines"][1].endswith("return self.layers(x)")


def test_fixed_batch_is_checked_as_it_is_exported(results: dict[str, Any]) -> None:
    found = results["fixed"]
    assert CHECKED in found["printed"]
    assert found["difference"] < 1e-6
    assert not found["other"], "the export step refuses a free batch likewise"


@pytest.mark.parametrize("name", ["off", "no output"])
def test_network_that_is_not_exported_is_not_checked(results: dict[str, Any], name: str) -> None:
    found = results["skipped"][name]
    assert len(found["losses"]) == 1
    assert CHECKED not in found["printed"]


def test_check_changes_neither_losses_nor_weights(results: dict[str, Any]) -> None:
    found = results["training_is_unchanged"]
    for field in ("losses", "weights", "numbers"):
        assert found["with"][field] == found["without"][field] == found["cached"][field], field
    checked, without = results["pipeline"]
    assert checked["losses"] == without["losses"]
    assert CHECKED in checked["printed"]


def test_passed_network_and_resumed_run_are_not_checked_again(results: dict[str, Any]) -> None:
    found = results["training_is_unchanged"]
    assert [CHECKED in found[name]["printed"] for name in ("with", "cached", "resumed")] == [True, False, False]
    assert len(found["resumed"]["losses"]) == 4
    assert [CHECKED in printed for printed in results["changed_code_is_checked_again"]] == [True, False, True, False]


def test_rank_0_checks_and_all_workers_end(mindspore_processes: MindSporeProcesses, tmp_path: Path) -> None:
    script = tmp_path / "gang.py"
    script.write_text(
        f"""import sys
sys.path[:0] = [{str(SCRIPT.parent)!r}, {str(NETWORKS.parent)!r}]
from export_scenarios import LABELS, LENGTHS, ROWS, SERIES, Path, networks, train
print(train(networks.Random(), (ROWS, LABELS), Path(sys.argv[1]), epochs=1))
print(train(networks.Gated(), ({{"x": SERIES, "lengths": LENGTHS}}, LABELS), Path(sys.argv[1])))
"""
    )
    environment = {"KFP_MINDSPORE_HOME": str(tmp_path), "MS_NODE_TIMEOUT": "250"}
    processes = start_gang(mindspore_processes, [script, tmp_path / "out"], tmp_path, 2, environment)
    _, first, second = [process.finish(300)[1] for process in processes]
    assert CHECKED in first
    assert "layer rnn (GRU) cannot be exported" in first
    assert "worker 0 cannot export the network, see its message" in second
    for output in (first, second):
        assert output.count("'losses'") == 1
        assert "'epochs': 0" in output
