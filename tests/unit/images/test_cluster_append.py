import json
import subprocess
import sys

import pytest

from kfp_mindspore.errors import UserError
from kfp_mindspore.images import BuildContext, Entry, ImageOptions, make_plan
from kfp_mindspore.images.builders import cluster_append
from kfp_mindspore.images.builders.append import AppendBuilder
from kfp_mindspore.images.builders.cluster_append import merge_logins, read_plan, unpack_context, write_plan
from kfp_mindspore.images.builders.cluster_layout import PLAN_FILE
from kfp_mindspore.images.builders.cluster_registry import write_registry_files
from tests.support import base_images


@pytest.fixture
def plan(config, registry):
    base = base_images.push_base(registry.host, config=config)
    context = BuildContext(
        [
            Entry.from_bytes("main.py", b"print(1)\n"),
            Entry.from_bytes("bin/run", b"#!/bin/sh\n", mode=0o755),
            Entry("link.py", 0, link="main.py"),
            Entry.from_bytes("empty", b""),
        ]
    )
    options = ImageOptions(base=base, env={"A": "1"}, command=("python3", "main.py"), labels={"team": "x"})
    return make_plan(context, options, AppendBuilder(config))


@pytest.fixture
def prepared(plan, config, registry, tmp_path):
    """Lay out what a build's pod finds, and return the arguments of its command."""
    settings = tmp_path / "settings"
    settings.mkdir()
    for name, text in {**write_registry_files(config, (registry.host,)), PLAN_FILE: write_plan(plan)}.items():
        (settings / name).write_text(text)
    with (tmp_path / "context.tar").open("wb") as file:
        plan.write_context(file)
    (tmp_path / "work").mkdir()
    return {
        "--archive": str(tmp_path / "context.tar"),
        "--settings": str(settings),
        "--work": str(tmp_path / "work"),
        "--termination": str(tmp_path / "digest"),
    }


def _run(prepared, target) -> int:
    return cluster_append.main([word for pair in {"--target": target, **prepared}.items() for word in pair])


def test_plan_and_sources_are_the_same_in_the_pod(plan, tmp_path) -> None:
    with (tmp_path / "context.tar").open("wb") as file:
        plan.write_context(file)
    read = read_plan(write_plan(plan), unpack_context(tmp_path / "context.tar", tmp_path / "sources"))
    assert read.digest == plan.digest
    assert [(entry.path, entry.mode, entry.link) for entry in read.context.entries] == [
        (entry.path, entry.mode, entry.link) for entry in plan.context.entries
    ]


def test_command_pushes_what_a_build_on_this_machine_pushes(plan, prepared, registry, config, tmp_path, capsys) -> None:
    assert _run(prepared, f"{registry.host}/cluster/append:{plan.tag}") == 0
    digest = (tmp_path / "digest").read_text()
    here = AppendBuilder(config).build(plan, f"{registry.host}/cluster/here")
    assert digest == here.digest
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert any(entry["done_bytes"] for entry in told)
    assert list((tmp_path / "work").iterdir()) == []


def test_sources_of_another_plan_are_refused(prepared, registry, capsys) -> None:
    assert _run(prepared, f"{registry.host}/cluster/refused:abc") == 2
    assert "its sources are not those of abc" in capsys.readouterr().err
    assert registry.list_tags("cluster/refused") == []


def test_damaged_context_is_told(tmp_path) -> None:
    (tmp_path / "context.tar").write_bytes(b"no tar")
    with pytest.raises(UserError, match="the context is damaged"):
        unpack_context(tmp_path / "context.tar", tmp_path / "sources")


def test_first_login_for_a_registry_counts(tmp_path) -> None:
    for name, auths in (("push", {"a": {"auth": "1"}}), ("pull", {"a": {"auth": "2"}, "b": {"auth": "3"}})):
        (tmp_path / name).write_text(json.dumps({"auths": auths}))
    assert merge_logins([tmp_path / "push", tmp_path / "pull"]) == {"auths": {"a": {"auth": "1"}, "b": {"auth": "3"}}}


def test_module_runs_by_name(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", cluster_append.__name__, "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "--target" in done.stdout
