from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.steps.train import name_job


@given(st.text(), st.text())
def test_name_of_a_job_is_a_dns_label_that_leaves_room_for_its_replicas(prefix: str, seed: str) -> None:
    name = name_job(prefix, seed)
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    assert len(name) <= 51
    assert name == name_job(prefix, seed)


@pytest.mark.parametrize(
    ("prefix", "start"), [("train_LeNet", "train-lenet-"), ("2nd", "job-2nd-"), ("_", "job-"), ("x" * 99, "x" * 40)]
)
def test_name_starts_with_what_the_job_does(prefix: str, start: str) -> None:
    assert name_job(prefix, "/out").startswith(start)


def test_names_differ_by_output() -> None:
    assert name_job("train", "/a") != name_job("train", "/b")
