"""A language model's memory against its container's."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from kfp_mindspore.errors import UserError
from mindsporeserver.language.memory import MemoryPlan, read_memory_limit

MIB = 1 << 20
PLAN = MemoryPlan(500 * MIB, 700 * MIB, 200 * MIB)


def test_plan_that_fits_is_accepted() -> None:
    PLAN.check(2100 * MIB)
    assert str(PLAN) == "weights 500 MiB, slots 700 MiB, prefix cache 200 MiB"


def test_adapters_and_graphs_are_counted() -> None:
    plan = PLAN._replace(adapters=50 * MIB, graphs=900 * MIB)
    assert str(plan).endswith("prefix cache 200 MiB, adapters 50 MiB, graphs 900 MiB")
    PLAN._replace(graphs=900 * MIB).check(3000 * MIB)
    with pytest.raises(UserError, match="adapters 50 MiB, graphs 900 MiB"):
        plan.check(2100 * MIB)


def test_plan_that_does_not_fit_names_each_part_and_flag() -> None:
    with pytest.raises(UserError) as raised:
        PLAN.check(2099 * MIB)
    for part in ("needs 2100 MiB", "weights 500", "slots 700", "prefix cache 200", "has 2099 MiB", "--max-num-seqs"):
        assert part in str(raised.value)


@pytest.mark.parametrize(("content", "expected"), [("1000000\n", 1_000_000), ("max\n", None), (None, None)])
def test_limit_is_the_control_groups(tmp_path: Path, content: str | None, expected: int | None) -> None:
    file = tmp_path / "memory.max"
    if content is not None:
        file.write_text(content)
    assert read_memory_limit(file) == (expected or psutil.virtual_memory().total)
