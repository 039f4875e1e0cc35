"""Literal signatures match the declaration of their options, see `kfp_mindspore.options`.

An option is added to its dataclass first; this test then names each signature that lacks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from kfp_mindspore.components import deploy_kserve, load_dataset
from kfp_mindspore.data.options import DatasetOptions
from kfp_mindspore.dsl import set_run_policy
from kfp_mindspore.inference import Service
from kfp_mindspore.options import option
from kfp_mindspore.steps.launch.options import JobOptions
from tests.support.option_signatures import CLIENT, COMPONENT, SETTER, Signature

SIGNATURES = [
    Signature(DatasetOptions, load_dataset, COMPONENT),
    Signature(
        Service,
        deploy_kserve,
        COMPONENT,
        names={"name": "service_name"},
        without={
            **dict.fromkeys(("model_dir", "digest"), "of the artifact"),
            **dict.fromkeys(("port", "grpc_port", "host"), "of this machine"),
        },
    ),
    Signature(
        JobOptions,
        set_run_policy,
        SETTER,
        only=(
            *("backoff_limit", "active_deadline_seconds", "start_timeout_seconds", "ttl_seconds_after_finished"),
            *("clean_pod_policy", "delete_after_done"),
        ),
    ),
]


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.name)
def test_signature_matches_declaration(signature: Signature) -> None:
    assert signature.list_differences() == []


@dataclass
class Brew:
    """Options of a pot.

    Args:
        pot: Name of the pot.
        cups: Number of cups. At most nine.
        labels: Labels of the pot.
        filters: Names of filters.
    """

    pot: str
    cups: int | None = None
    labels: Mapping[str, Any] = option({})
    filters: Sequence[str] = ()


def brew(pot: str, cups: int = 0, labels: dict[str, Any] = {}, filters: list[str] = []) -> None:  # noqa: B006
    """Brew.

    Args:
        pot: Name of the pot.
        cups: Number of cups; 0 for all.
        labels: Labels of the pot.
        filters: Names of filters.
    """


def set_pot(task: Any, count: int | None = None) -> None:
    """Set it.

    Args:
        task: A task.
        count: Number of cups.
    """


def brew_wrongly(pot: str = "", cups: float = 1, filters: Sequence[str] = ()) -> None:
    """Brew.

    Args:
        pot: Name of the pot.
        cups: How many.
    """


def test_equal_signatures_have_no_differences() -> None:
    assert Signature(Brew, brew, COMPONENT).list_differences() == []
    assert Signature(Brew, set_pot, SETTER, {"cups": "count"}, only=("cups",)).list_differences() == []


def test_each_difference_names_its_place() -> None:
    assert Signature(Brew, brew_wrongly, CLIENT, only=()).list_differences() == [
        "brew_wrongly: pot: has the default '', expected <class 'inspect._empty'>",
        "brew_wrongly: cups: has the type <class 'float'>, expected int of object",
        "brew_wrongly: cups: has the default 1, expected None",
        "brew_wrongly: cups: is described as 'How many.', expected 'Number of cups' and further words if any",
        "brew_wrongly: labels: is no argument; Brew.labels is dict",
        "brew_wrongly: filters: is described as '', expected 'Names of filters' and further words if any",
    ]


def test_unknown_field_in_table_is_named() -> None:
    differences = Signature(Brew, set_pot, SETTER, only=("cup",)).list_differences()

    assert differences == ["set_pot: cup: is no field of Brew"]
