from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kfp_mindspore.kube.cluster import Cluster
from tests.support.kube.fake_api_server import FakeApiServer


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with FakeApiServer().serve() as server:
        yield server


@pytest.fixture
def cluster(server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    return Cluster(server.write_kubeconfig(tmp_path / "kubeconfig", namespace="team"), retry_timeout=120)
