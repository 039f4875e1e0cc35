from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.steps.job import make_job_name


@given(st.text(), st.text())
def test_job_name_is_a_dns_label_with_room_for_replica_suffixes(prefix: str, seed: str) -> None:
    name = make_job_name(prefix, seed)
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    assert len(name) <= 51
    assert name == make_job_name(prefix, seed)


@pytest.mark.parametrize(
    ("prefix", "start"), [("train_LeNet", "train-lenet-"), ("2nd", "job-2nd-"), ("_", "job-"), ("x" * 99, "x" * 40)]
)
def test_job_name_starts_with_prefix(prefix: str, start: str) -> None:
    assert make_job_name(prefix, "/out").startswith(start)


def test_job_names_differ_by_seed() -> None:
    assert make_job_name("train", "/a") != make_job_name("train", "/b")
