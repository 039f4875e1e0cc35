"""Image builds of a step: options that are refused, and the files that a context has."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.settings import PLACEHOLDER_IMAGE
from kfp_mindspore.steps.launch.build import build_step_image


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "local")
    monkeypatch.delenv("KFP_MINDSPORE_IMAGE", raising=False)


def test_local_run_without_destination_builds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert build_step_image("", sources="missing", base="python:3.11") is None
    assert "no destination is given, and jobs on this machine run without an image" in capsys.readouterr().out


def test_run_on_cluster_needs_destination(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "kubernetes")
    with pytest.raises(UserError, match="destination: is missing: the repository that the cluster pulls"):
        build_step_image("", base="python:3.11", files={"train.py": ""})


@pytest.mark.parametrize("base", ["", PLACEHOLDER_IMAGE])
def test_placeholder_is_no_base(base: str) -> None:
    with pytest.raises(UserError, match="base: is the placeholder of a pipeline whose image was not set") as caught:
        build_step_image("registry/team/net", base=base, files={"train.py": ""})
    assert "--image or KFP_MINDSPORE_IMAGE" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"builder": "kaniko"}, "builder: must be one of append, cluster, docker, got 'kaniko'"),
        (
            {"builder_options": {"network": "host"}},
            "builder_options.network: is unknown, expected nothing: this builder has no options",
        ),
        (
            {"builder": "docker", "builder_options": {"hosts": "x"}},
            "builder_options.hosts: is unknown, expected one of host, build_args, network",
        ),
        (
            {"builder": "cluster", "builder_options": {"claims": "x"}},
            "builder_options.claims: is unknown, expected one of",
        ),
        ({"registry": {"insecur": ["x"]}}, "registry.insecur: is unknown, expected one of"),
        ({"files": {}}, "sources, files: one of them must name the files of the image"),
        ({"sources": "missing"}, "sources: missing: no such folder or file"),
    ],
)
def test_wrong_option_is_named_before_build(options: dict[str, Any], message: str) -> None:
    given = {"base": "127.0.0.1:1/base:1", "files": {"train.py": "print(1)"}, **options}
    with pytest.raises((UserError, ValidationError)) as caught:
        build_step_image("127.0.0.1:1/team/net", **given)
    assert message in str(caught.value)


def test_each_unknown_option_is_named() -> None:
    with pytest.raises(ValidationError) as caught:
        build_step_image("r/n", base="b:1", files={"a": ""}, registry={"user": 1, "pass": 2})
    assert [error.partition(":")[0] for error in caught.value.errors] == ["registry.user", "registry.pass"]
