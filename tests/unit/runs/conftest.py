from __future__ import annotations

import shutil
from pathlib import Path

import pytest

SAMPLES = Path(__file__).with_name("samples")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a copy of the sample project that a test can change."""
    return Path(shutil.copytree(SAMPLES, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__")))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("KFP_MINDSPORE_HOME", str(home))
    return home
