from __future__ import annotations

from pathlib import Path

import pytest

from kfp_mindspore.testing import make_once
from tests.support.models.table_models import export_table, make_rows, write_csv


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles of one table: `declared`, `coded` and `plain` by preprocessing, `bare` without statistics."""

    def make(root: Path) -> None:
        models = Path(__file__).parents[3] / "support" / "models"
        write_csv(root / "table.csv", make_rows(1500))
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(models))
            numbers = {"missing": 0, "features": ["age", "income"], "preprocessing": "none"}
            export_table(root, "declared", {"missing": "mean", "ids": ["id"]})
            export_table(root, "coded", {"missing": "mean", "ids": ["id"]}, transform=models / "table_transform.py")
            export_table(root, "plain", numbers)
            export_table(root, "bare", numbers, statistics=False)

    return make_once(tmp_path_factory, "drift-tables", make)
