from __future__ import annotations

import os
from pathlib import Path

import pytest

PEERS_VARIABLE = "KFP_MINDSPORE_PEERS"


@pytest.fixture(scope="session")
def peers() -> Path:
    """Python of the peers' environment."""
    python = os.environ.get(PEERS_VARIABLE)
    if not python:
        pytest.skip(f"the peers have an environment of their own: run `make test-peers`, which sets {PEERS_VARIABLE}")
    return Path(python)
