from __future__ import annotations

import dataclasses
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.images import AppendBuilder, ImageOptions, RegistryConfig, build_image, describe_plan, make_plan
from kfp_mindspore.images.plan import ImagePlan
from kfp_mindspore.images.requirements import merge_requirements, read_requirements
from kfp_mindspore.images.sources.context import BuildContext
from kfp_mindspore.images.sources.entry import ContextEntry
from tests.support.remote import base_images, registries

DIGEST = f"sha256:{'a' * 64}"


def make_image_plan(context: BuildContext, **options: Any) -> ImagePlan:
    return ImagePlan(context, ImageOptions("reg.io/base:1", **options), DIGEST)


CHANGES: dict[str, Any] = {
    "platform": "linux/arm64",
    "requirements": ("numpy",),
    "containerfile": "FROM x\n",
    "workdir": "/srv",
    "user": "0:0",
    "env": {"A": "1"},
    "command": ("python3",),
    "labels": {"a": "b"},
    "created": 1,
}


def test_tag_is_pinned(context: BuildContext) -> None:
    tag = make_image_plan(context, env={"B": "2", "A": "1"}).tag
    assert tag == make_image_plan(context, env={"A": "1", "B": "2"}).tag == "a81e93867c2685bb0883"


@pytest.mark.parametrize("option", CHANGES)
def test_every_option_changes_tag(context: BuildContext, option: str) -> None:
    assert make_image_plan(context, **{option: CHANGES[option]}).tag != make_image_plan(context).tag


def test_base_digest_and_sources_change_tag(context: BuildContext) -> None:
    plan = make_image_plan(context)
    other = BuildContext([ContextEntry.from_bytes("train.py", b"other")])
    changed = [dataclasses.replace(plan, base_digest=f"sha256:{'b' * 64}"), dataclasses.replace(plan, context=other)]
    assert len({plan.tag, *(item.tag for item in changed)}) == 3


def test_labels_identify_base_sources_and_plan(context: BuildContext) -> None:
    plan = make_image_plan(context, labels={"team": "a"}, created=86400)
    assert plan.all_labels == {
        "team": "a",
        "org.opencontainers.image.base.name": "reg.io/base:1",
        "org.opencontainers.image.base.digest": DIGEST,
        "org.opencontainers.image.created": "1970-01-02T00:00:00Z",
        "org.kfp-mindspore.image.sources": context.layer("/app").digest,
        "org.kfp-mindspore.image.plan": f"sha256:{plan.digest}",
    }


@pytest.mark.parametrize(
    "workdir",
    [
        *("app", "/", "/tmp", "/usr", "/a/../b", "/a//b", "", "/a b", "/a\nRUN x"),
        *(f"/{system}/x" for system in ("dev", "proc", "root", "sys", "tmp")),
    ],
)
def test_workdir_is_validated(context: BuildContext, workdir: str) -> None:
    with pytest.raises(UserError, match="workdir"):
        make_image_plan(context, workdir=workdir)


@pytest.mark.parametrize("platform", ["linux", "linux/amd64/v8/x", "", "Linux/amd64"])
def test_platform_is_validated(context: BuildContext, platform: str) -> None:
    with pytest.raises(UserError, match="platform"):
        make_image_plan(context, platform=platform)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a user with a line": ({"user": "1\nRUN x"}, "user: must be uid:gid"),
    "a variable with a space": ({"env": {"A B": "1"}}, "env: a variable's name has"),
    "a value of two lines": ({"env": {"A": "1\n2"}}, "env A: must be one line"),
    "a time before 1970": ({"created": -1}, "created: must be seconds"),
    "a time too late": ({"created": 10**12}, "created: must be seconds"),
}


@pytest.mark.parametrize("name", WRONG)
def test_options_are_validated(context: BuildContext, name: str) -> None:
    changes, reason = WRONG[name]
    with pytest.raises(UserError, match=reason):
        make_image_plan(context, **changes)


def test_containerfile_installs_before_it_copies(context: BuildContext) -> None:
    text = make_image_plan(
        context, requirements=("numpy",), env={"PRICE": '5 "$" \\'}, command=("python3", "train.py")
    ).containerfile
    assert text == (
        f"FROM reg.io/base:1@{DIGEST}\n"
        'ENV PRICE="5 \\"\\$\\" \\\\"\n'
        "USER 0:0\n"
        "COPY requirements.txt /tmp/requirements.txt\n"
        "RUN python3 -m pip install --no-cache-dir --requirement /tmp/requirements.txt && rm /tmp/requirements.txt\n"
        "WORKDIR /app\n"
        "COPY sources/ /app/\n"
        "USER 1000:1000\n"
        'CMD ["python3", "train.py"]\n'
    )
    plain = make_image_plan(context, user="").containerfile
    assert plain == f"FROM reg.io/base:1@{DIGEST}\nWORKDIR /app\nCOPY sources/ /app/\n"


def test_written_context_is_deterministic(context: BuildContext) -> None:
    plan = make_image_plan(context, requirements=("numpy", "pandas>=2"), containerfile="FROM x\n")
    first, second = io.BytesIO(), io.BytesIO()
    plan.write_context(first)
    plan.write_context(second)
    assert first.getvalue() == second.getvalue()
    first.seek(0)
    with tarfile.open(fileobj=first) as archive:
        files = {info.name: archive.extractfile(info).read() for info in archive if info.isfile()}
    assert files == {
        "Containerfile": b"FROM x\n",
        "requirements.txt": b"numpy\npandas>=2\n",
        "sources/lib/a.py": b"A = 1\n",
        "sources/train.py": b"print('trained')\n",
    }


def test_dry_run_describes_plan(
    registry: registries.Registry, config: RegistryConfig, context: BuildContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = base_images.push_base(registry.host, "plan/base", config=config)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
    options = ImageOptions(base, requirements=("numpy",), env={"API_TOKEN": "x"})
    plan = make_plan(context, options, AppendBuilder(config))
    shown = describe_plan(plan)
    assert shown["files"] == [
        {"path": "lib/a.py", "mode": "0644", "size": 6},
        {"path": "train.py", "mode": "0644", "size": 17},
    ]
    assert shown["size_bytes"] == 23
    assert shown["base"] == f"{base}@{plan.base_digest}"
    assert shown["containerfile"].startswith(f"FROM {base}@{plan.base_digest}\n")
    assert shown["tag"] == plan.tag
    assert shown["warnings"][0].startswith("env API_TOKEN:")
    assert plan.created_text == "2001-09-09T01:46:40Z"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(UserError, match="SOURCE_DATE_EPOCH"):
        ImageOptions(base)


@pytest.mark.parametrize(
    ("changes", "destination", "reason"),
    [
        ({"platform": "linux"}, "reg.io/a", "platform: "),
        ({"workdir": "../x"}, "reg.io/a", "workdir: "),
        ({"user": "a:b:c"}, "reg.io/a", "user: "),
        ({"containerfile": "RUN x\n"}, "reg.io/a", "must start with FROM"),
        ({}, "reg.io/UPPER", "destination: "),
    ],
)
def test_arguments_are_validated_before_request(
    context: BuildContext, changes: dict[str, str], destination: str, reason: str
) -> None:
    # Nothing listens on this port: a request would be another error.
    def build() -> None:
        options = ImageOptions("localhost:1/base", **changes)
        build_image(context, destination, options, AppendBuilder(RegistryConfig(attempts=1)))

    with pytest.raises(UserError, match=reason):
        build()


def test_own_containerfile_replaces_generated_one(
    registry: registries.Registry, config: RegistryConfig, context: BuildContext
) -> None:
    base = base_images.push_base(registry.host, "plan/base", config=config)
    builder = AppendBuilder(config)
    plan = make_plan(context, ImageOptions(base, containerfile="# mine\nARG X\nFROM $X\n"), builder)
    assert plan.containerfile == "# mine\nARG X\nFROM $X\n"
    for text, reason in (("RUN x\n", "line 1: must start with FROM"), ("# only\n", "has no FROM")):
        with pytest.raises(UserError, match=reason):
            ImageOptions(base, containerfile=text)


def test_requirements_are_merged_and_logins_refused(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("# all\nnumpy>=1.26  # why\n\npandas \\\n  ==2.0\n")
    assert merge_requirements(read_requirements(file), ["numpy>=1.26", " x "]) == (
        "numpy>=1.26",
        "pandas    ==2.0",
        "x",
    )
    with pytest.raises(UserError, match="a URL with a login") as caught:
        merge_requirements(["x @ https://me:hunter2@host/x.whl"])
    assert "hunter2" not in str(caught.value)
    file.write_text("numpy\n-r other.txt\n")
    with pytest.raises(UserError, match="line 2: -r names a file"):
        read_requirements(file)
    with pytest.raises(NotFoundError, match="no such file"):
        read_requirements(tmp_path / "none")
