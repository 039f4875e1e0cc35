from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.steps.handover.job_name import make_job_name

RUN = "s3://bucket/artifacts/digits/6f1de2bb-7d5e-4d0c-9a51-1f6a5e0f6f11"
TASK = "0b6f5a9e-52f0-4a0c-8f37-90a7b4a6b1aa"


@given(st.text())
def test_job_name_is_dns_label_with_room_for_replica_suffixes(root: str) -> None:
    name = make_job_name(root)
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    assert len(name) <= 43
    assert name == make_job_name(root)


@pytest.mark.parametrize(
    ("root", "start"),
    [
        (f"{RUN}/train-msjob/{TASK}", "train-msjob-"),
        (f"/s3/bucket/digits/train-msjob-2/{TASK}/", "train-msjob-2-"),
        ("/runs/digits-2026-11-23/train_LeNet", "train-lenet-"),
        ("/runs/2nd", "job-2nd-"),
        ("_", "job-"),
        (f"/{'x' * 99}", f"{'x' * 30}-"),
        (f"{RUN}/{'x' * 29}-y/{TASK}", f"{'x' * 29}-"),
    ],
)
def test_job_name_starts_with_task(root: str, start: str) -> None:
    assert re.fullmatch(rf"{start}[0-9a-f]{{12}}", make_job_name(root))


def test_job_names_differ_by_root() -> None:
    assert make_job_name(f"{RUN}/train/{TASK}") != make_job_name(f"{RUN}/train/{TASK.replace('0b', '1b')}")
