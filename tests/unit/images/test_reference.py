from __future__ import annotations

import pytest

from kfp_mindspore.errors import UserError
from kfp_mindspore.images import RegistryConfig
from kfp_mindspore.images.reference import parse_reference, parse_repository

DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("text", "full", "selector"),
    [
        ("python", "docker.io/library/python", "latest"),
        ("python:3.11-slim", "docker.io/library/python:3.11-slim", "3.11-slim"),
        ("team/train", "docker.io/team/train", "latest"),
        ("localhost/x", "localhost/x", "latest"),
        ("reg.io:5000/a/b-c__d:T_1", "reg.io:5000/a/b-c__d:T_1", "T_1"),
        (f"reg.io/a@{DIGEST}", f"reg.io/a@{DIGEST}", DIGEST),
        (f"reg.io/a:1@{DIGEST}", f"reg.io/a:1@{DIGEST}", DIGEST),
        ("[::1]:5000/a", "[::1]:5000/a", "latest"),
    ],
)
def test_references_are_parsed(text: str, full: str, selector: str) -> None:
    reference = parse_reference(text)
    assert (str(reference), reference.selector) == (full, selector)
    assert parse_reference(str(reference)) == reference


@pytest.mark.parametrize("text", ["", "UPPER", "a b", "reg.io/", "a:", "a:-x", "a@sha256:12", "reg.io/a//b", "-x.io/a"])
def test_invalid_part_is_named(text: str) -> None:
    with pytest.raises(UserError, match=r"^base: ") as caught:
        parse_reference(text, field="base")
    assert caught.value.hint == "Expected HOST/NAME:TAG or HOST/NAME@sha256:…"


@pytest.mark.parametrize("text", ["https://me:hunter2@reg.io/a", "me:hunter2@reg.io/a", "https://reg.io/hunter2"])
def test_logins_are_not_quoted(text: str) -> None:
    with pytest.raises(UserError, match="not a URL or a name with a login") as caught:
        parse_reference(text)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("text", ["reg.io/a:1", f"reg.io/a@{DIGEST}"])
def test_destination_has_no_tag(text: str) -> None:
    with pytest.raises(UserError, match="destination: must be a repository"):
        parse_repository(text)


@pytest.mark.parametrize("text", ["reg.io/UPPER", "reg.io/a:1", "reg.io/a:-x"])
def test_destination_error_has_expected_form(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_repository(text)
    assert caught.value.hint.startswith("Expected HOST/NAME; ")


def test_mirror_replaces_host() -> None:
    config = RegistryConfig(mirrors={"docker.io": "mirror.local:5000/hub/", "quay.io": "mirror.local:5000"})
    assert str(config.locate(parse_reference("python:3"))) == "mirror.local:5000/hub/library/python:3"
    assert str(config.locate(parse_reference("quay.io/a/b"))) == "mirror.local:5000/a/b"
    assert str(config.locate(parse_reference("ghcr.io/a/b"))) == "ghcr.io/a/b"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"attempts": 0}, "attempts: must be at least 1"),
        ({"ca_file": "/nonexistent/ca.pem"}, "ca_file: /nonexistent/ca.pem: no such file"),
        ({"mirrors": {"docker.io": "https://x"}}, r"mirrors\[docker.io\]"),
    ],
)
def test_configuration_is_validated(options: dict, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        RegistryConfig(**options)
