"""What all commands share, on every command and option of `kfp-mindspore`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kfp_mindspore.cli.main import cli, run
from kfp_mindspore.cli.shared.output import PairType


def list_commands(
    command: click.Command = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield each command that is no group, with its words."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        yield from list_commands(child, (*path, name))


COMMANDS = dict(list_commands())


def list_options(path: tuple[str, ...]) -> list[click.Option]:
    return [parameter for parameter in COMMANDS[path].params if isinstance(parameter, click.Option)]


def test_all_commands_are_found() -> None:
    assert len(COMMANDS) > 40
    assert ("dataset", "load") in COMMANDS


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_repeated_option_of_one_value_is_refused(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    for option in list_options(path):
        if option.is_flag or option.multiple:
            continue
        for first, second in ((option.opts[0], option.opts[0]), (option.opts[0], option.opts[-1])):
            assert run([*path, first, "1", second, "2"]) == 2
            errors = capsys.readouterr().err
            assert f"Error: {' / '.join(option.opts)}: given 2 times, expected once\n" in errors


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_repeated_key_is_refused(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    for option in list_options(path):
        if isinstance(option.type, PairType) and option.type.has_unique_keys:
            words = [option.opts[0], "a=1", option.opts[-1], "b=2"]
            assert run([*path, *words, option.opts[0], "a =3"]) == 2
            assert f"Error: {option.opts[0]} a: given 2 times, expected once\n" in capsys.readouterr().err


def test_claim_may_have_two_mount_paths() -> None:
    command = COMMANDS["job", "submit"]
    context = command.make_context("submit", ["--claim", "a=/b", "--claim", "a=/c", "--name", "x", "--", "true"])
    assert context.params["claims"] == (("a", "/b"), ("a", "/c"))


LISTS = {
    ("job", "list"): [[]],
    ("runs", "list"): [[]],
    ("service", "list"): [[], ["--all-namespaces"]],
    ("pipeline", "list"): [[]],
}


def test_every_list_command_prints_items_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {path for path in COMMANDS if path[-1] == "list"} == set(LISTS)
    monkeypatch.setenv("KFP_MINDSPORE_HOME", str(tmp_path))
    for path, cases in LISTS.items():
        for words in cases:
            assert run([*path, *words, "--json"]) == 0, capsys.readouterr().err
            found = json.loads(capsys.readouterr().out)
            assert list(found) == ["items"]
            assert all(isinstance(item, dict) for item in found["items"])


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_usage_error_is_json_with_option(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*path, "--json", "--no-such-option"]) == 2
    output, errors = capsys.readouterr()
    error = json.loads(errors)["error"]
    assert list(error) == ["type", "message", "hint", "log", "exit_code"]
    assert (error["type"], error["exit_code"], output) == ("NoSuchOption", 2, "")
    has_option = any("--json" in option.opts for option in list_options(path))
    assert ("--no-such-option" if has_option else "--json") in error["message"]
