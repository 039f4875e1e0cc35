"""Connect-4: self-play by two workers, the arena as the gate, and the served move."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from kfp_mindspore.inference import InferenceClient, LocalServingBackend
from kfp_mindspore.runs import run_local
from kfp_mindspore.workloads.connect4.game import Positions
from kfp_mindspore.workloads.connect4.players import one_ply_player, play_match

pytestmark = [pytest.mark.workload, pytest.mark.long, pytest.mark.mindspore, pytest.mark.timeout(900)]


def test_pipeline_serves_player_that_beats_one_ply_player(local_home: Path) -> None:
    result = run_local("connect4", {"service_name": "four"}, home=local_home, keep=True)
    client = InferenceClient(LocalServingBackend(local_home))
    try:
        assert result.state == "succeeded"
        arena = result.steps["evaluate-function"].outputs
        rates = arena["metrics"]["metadata"]
        assert arena["passed"]
        assert arena["metric"] == "win_rate"
        for player in ("served", "search"):
            assert min(rates[f"{player}.random"], rates[f"{player}.one_ply"]) >= 0.9, rates
        url = f"{client.get('four').url}/v1/models/four:predict"

        def play_served(positions: Positions) -> np.ndarray:
            rows = {"instances": positions.to_boards().astype(int).tolist()}
            with urllib.request.urlopen(urllib.request.Request(url, json.dumps(rows).encode()), timeout=30) as response:
                return np.array([row["move"] for row in json.loads(response.read())["predictions"]])

        assert (play_match(play_served, one_ply_player(1), 40) > 0).mean() >= 0.8
    finally:
        client.delete("four")
