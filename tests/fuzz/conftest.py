"""One server for all that is fuzzed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.targets import Stage, open_stage


@pytest.fixture(scope="session")
def stage(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Return a running server of the digits' classifier and the model with two inputs."""
    with open_stage(models, tmp_path_factory.mktemp("fuzz"), "--enable_docs_url=true") as opened:
        yield opened
