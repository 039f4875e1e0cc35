from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.images import AppendBuilder, ImageOptions, RegistryConfig, build_image, make_plan
from kfp_mindspore.images.progress import BuildProgress
from kfp_mindspore.images.registry.images import inspect_image
from kfp_mindspore.images.registry.manifest import DOCKER_MANIFEST, OCI_MANIFEST
from kfp_mindspore.images.result import BuildResult
from kfp_mindspore.images.sources.context import BuildContext
from kfp_mindspore.images.sources.entry import ContextEntry
from tests.support.remote import base_images, registries
from tests.support.remote.registries import unpack_image

PLATFORMS = ("linux/amd64", "linux/arm64/v8")


def _build(context: BuildContext, destination: str, base: str, config: RegistryConfig, **options: Any) -> BuildResult:
    return build_image(context, destination, ImageOptions(base, **options), AppendBuilder(config))


@pytest.mark.parametrize("media_type", [OCI_MANIFEST, DOCKER_MANIFEST], ids=["oci", "docker"])
def test_skopeo_and_umoci_read_image(
    registry: registries.Registry, config: RegistryConfig, tmp_path: Path, media_type: str
) -> None:
    settings = {"Env": ["PATH=/bin", "A=0"], "Labels": {"base": "yes", "team": "x"}, "Entrypoint": ["/bin/env"]}
    base = base_images.push_base(registry.host, "read/base", config=config, media_type=media_type, settings=settings)
    context = BuildContext(
        [
            ContextEntry.from_bytes("train.py", b"print(1)\n"),
            ContextEntry.from_bytes("bin/run.sh", b"#!/bin/sh\n", mode=0o755),
            ContextEntry("again.py", 0, link="train.py"),
        ],
        command=("python3", "train.py"),
    )
    result = _build(
        context, f"{registry.host}/read/train", base, config, env={"A": "1"}, labels={"team": "y"}, created=86400
    )
    root, configuration = unpack_image(result.reference, tmp_path)
    assert (root / "app/train.py").read_bytes() == b"print(1)\n"
    assert (root / "app/bin/run.sh").stat().st_mode & 0o777 == 0o755
    assert (root / "app/train.py").stat().st_mode & 0o777 == 0o644
    assert (root / "app/again.py").readlink() == Path("train.py")
    assert (root / "etc/os-release").read_bytes() == b"ID=test\n"
    assert configuration["created"] == "1970-01-02T00:00:00Z"
    assert configuration["rootfs"]["diff_ids"][-1] == context.layer("/app").digest
    ran = configuration["config"]
    assert (ran["User"], ran["WorkingDir"], ran["Entrypoint"]) == ("1000:1000", "/app", ["/bin/env"])
    assert (ran["Cmd"], ran["Env"]) == (["python3", "train.py"], ["PATH=/bin", "A=1"])
    assert {"base": "yes", "team": "y", "org.opencontainers.image.base.name": base}.items() <= ran["Labels"].items()
    assert ran["Labels"]["org.kfp-mindspore.image.sources"] == context.layer("/app").digest


@pytest.mark.parametrize(
    ("base_env", "expected"),
    [
        (
            base_images.CANN_PATHS,
            {
                "PATH": "/app/bin:/usr/local/Ascend/bin:/usr/bin:/bin",
                "LD_LIBRARY_PATH": "/app/lib:/usr/local/Ascend/lib64",
                "PYTHONPATH": "/usr/local/Ascend/python",
                "A": "1",
            },
        ),
        (
            {},
            {
                "PATH": "/app/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "LD_LIBRARY_PATH": "/app/lib",
                "A": "1",
            },
        ),
    ],
    ids=["cann", "none"],
)
def test_search_paths_precede_those_of_base(
    registry: registries.Registry,
    config: RegistryConfig,
    context: BuildContext,
    base_env: dict[str, str],
    expected: dict[str, str],
) -> None:
    settings = {"Env": [f"{name}={value}" for name, value in base_env.items()]}
    base = base_images.push_base(registry.host, f"paths{len(base_env)}/base", config=config, settings=settings)
    env = {"PATH": "/app/bin", "LD_LIBRARY_PATH": "/app/lib", "A": "1"}
    result = _build(context, f"{registry.host}/paths{len(base_env)}/train", base, config, env=env)
    found = inspect_image(result.reference, config).env
    assert dict(pair.split("=", 1) for pair in found) == expected
    # The Containerfile of the other builders gives the same image.
    plan = make_plan(context, ImageOptions(base, env=env), AppendBuilder(config))
    if base_env:
        built = base_images.evaluate_env(f"\n{plan.containerfile}", base_env)
        assert built == {name: expected[name] for name in base_images.CANN_PATHS}


def test_only_source_layer_is_sent(
    registry: registries.Registry, config: RegistryConfig, context: BuildContext
) -> None:
    base = base_images.push_base(registry.host, "once/base", config=config)
    seen: list[BuildProgress] = []
    builder = AppendBuilder(config)
    first = build_image(context, f"{registry.host}/once/train", ImageOptions(base), builder, on_progress=seen.append)
    size = context.layer("/app").size_bytes
    assert (first.built, first.layers_sent, first.layers_reused, first.sent_bytes) == (True, 1, 2, size)
    assert (seen[-1].step, seen[-1].done_bytes, seen[-1].total_bytes) == ("Push layer", size, size)
    second = build_image(context, f"{registry.host}/once/train", ImageOptions(base), builder)
    assert (second.built, second.layers_sent, second.layers_reused, second.sent_bytes) == (False, 0, 3, 0)
    assert (second.reference, second.tag, second.size_bytes) == (first.reference, first.tag, first.size_bytes)
    assert registry.list_tags("once/train") == [first.tag]


def test_second_build_uploads_nothing(
    registry: registries.Registry, config: RegistryConfig, context: BuildContext
) -> None:
    base = base_images.push_base(registry.host, "quiet/base", config=config)
    with registries.FaultProxy(registry) as proxy:
        through = dataclasses.replace(config, insecure=(registry.host, proxy.host))
        _build(context, f"{proxy.host}/quiet/train", base, through)
        assert any(request.startswith("PUT") for request in proxy.requests)
        proxy.requests.clear()
        _build(context, f"{proxy.host}/quiet/train", base, through)
        assert [request.split()[0] for request in proxy.requests] == ["GET", "GET"]


def test_digest_is_same_in_every_registry(
    registries_pair: tuple[registries.Registry, registries.Registry], tmp_path: Path, context: BuildContext
) -> None:
    digests = set()
    for registry in registries_pair:
        config = RegistryConfig(insecure=(registry.host,), mirrors={"base.example": registry.host})
        base_images.push_base(registry.host, "same/base", config=config)
        result = _build(context, f"{registry.host}/same/train", "base.example/same/base:1", config)
        digests.add((result.digest, result.tag))
    assert len(digests) == 1


@pytest.fixture
def registries_pair(registry: registries.Registry, tmp_path: Path) -> Any:
    with registries.start_registry(tmp_path / "other") as other:
        yield registry, other


def test_base_layers_of_another_registry_are_copied_once(
    registries_pair: tuple[registries.Registry, registries.Registry], context: BuildContext
) -> None:
    near, far = registries_pair
    config = RegistryConfig(insecure=(near.host, far.host))
    big = {"opt/big": bytes(range(256)) * 50_000}
    base = base_images.push_base(far.host, "copy/base", config=config, layers=[*base_images.LAYERS, big])
    first = _build(context, f"{near.host}/copy/train", base, config)
    assert (first.layers_sent, first.layers_reused) == (4, 0)
    changed = BuildContext([ContextEntry.from_bytes("train.py", b"print(2)\n")])
    second = _build(changed, f"{near.host}/copy/train", base, config)
    assert (second.layers_sent, second.layers_reused) == (1, 3)


def test_moved_base_tag_is_built_again(
    registry: registries.Registry, config: RegistryConfig, context: BuildContext
) -> None:
    base = base_images.push_base(registry.host, "moved/base", config=config)
    first = _build(context, f"{registry.host}/moved/train", base, config)
    base_images.push_base(registry.host, "moved/base", config=config, layers=[{"etc/os-release": b"ID=newer\n"}])
    second = _build(context, f"{registry.host}/moved/train", base, config)
    assert second.built
    assert second.tag != first.tag


def test_tag_of_another_image_is_replaced(
    registry: registries.Registry, config: RegistryConfig, context: BuildContext
) -> None:
    base = base_images.push_base(registry.host, "taken/base", config=config)
    tag = _build(context, f"{registry.host}/taken/first", base, config).tag
    base_images.push_base(registry.host, "taken/train", tag, config=config)
    assert _build(context, f"{registry.host}/taken/train", base, config).built


@pytest.mark.parametrize("media_type", [OCI_MANIFEST, DOCKER_MANIFEST], ids=["oci", "docker"])
def test_index_is_kept_or_one_platform_selected(
    registry: registries.Registry, config: RegistryConfig, context: BuildContext, tmp_path: Path, media_type: str
) -> None:
    base = base_images.push_base(registry.host, "multi/base", config=config, platforms=PLATFORMS, media_type=media_type)
    everything = _build(context, f"{registry.host}/multi/train", base, config, platform="all")
    assert inspect_image(everything.reference, config).platforms == PLATFORMS
    for platform in PLATFORMS:
        root, configuration = unpack_image(everything.reference, tmp_path / platform.replace("/", "-"), platform)
        assert configuration["architecture"] == platform.split("/")[1]
        assert (root / "app/train.py").is_file()
    one = _build(context, f"{registry.host}/multi/train", base, config, platform="linux/arm64")
    described = inspect_image(one.reference, config)
    assert described.platforms == ("linux/arm64/v8",)
    assert not _build(context, f"{registry.host}/multi/train", base, config, platform="all").built
    with pytest.raises(NotFoundError, match="no image for linux/s390x") as caught:
        _build(context, f"{registry.host}/multi/train", base, config, platform="linux/s390x")
    assert "linux/amd64, linux/arm64/v8" in caught.value.hint


def test_platform_of_single_image_must_match(
    registry: registries.Registry, config: RegistryConfig, context: BuildContext
) -> None:
    base = base_images.push_base(registry.host, "single/base", config=config)
    with pytest.raises(NotFoundError, match="is an image for linux/amd64, not for linux/arm64"):
        _build(context, f"{registry.host}/single/train", base, config, platform="linux/arm64")


def test_inspect_describes_image(registry: registries.Registry, config: RegistryConfig, context: BuildContext) -> None:
    base = base_images.push_base(registry.host, "seen/base", config=config)
    result = _build(context, f"{registry.host}/seen/train", base, config, env={"A": "1"})
    described = inspect_image(f"{registry.host}/seen/train:{result.tag}", config)
    assert described.reference == result.reference
    assert described.size_bytes == result.size_bytes
    assert described.layers[-1] == (context.layer("/app").digest, context.layer("/app").size_bytes)
    assert (described.user, described.workdir, described.env) == ("1000:1000", "/app", ("A=1",))
    assert json.loads(json.dumps(described.to_json()))["labels"]["org.opencontainers.image.base.name"] == base
    with pytest.raises(NotFoundError, match="seen/none: no such image"):
        inspect_image(f"{registry.host}/seen/none", config)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"requirements": ("numpy",)}, "installs nothing, got numpy"),
        ({"containerfile": "FROM x\n"}, "no commands"),
    ],
)
def test_plans_with_commands_are_refused(
    registry: registries.Registry, config: RegistryConfig, context: BuildContext, options: dict[str, Any], reason: str
) -> None:
    base = base_images.push_base(registry.host, "refused/base", config=config)
    with pytest.raises(UserError, match=reason) as caught:
        _build(context, f"{registry.host}/refused/train", base, config, **options)
    assert "docker or the cluster builder" in caught.value.hint
    assert registry.list_tags("refused/train") == []


def test_concurrent_builds_push_one_image(
    registry: registries.Registry, config: RegistryConfig, tmp_path: Path
) -> None:
    base = base_images.push_base(registry.host, "both/base", config=config)
    context = BuildContext([ContextEntry.from_bytes("big", bytes(range(256)) * (12 << 12))])
    results: list[BuildResult] = []
    # Another push reads the blobs of this one: the registry may need a moment.
    patient = dataclasses.replace(config, backoff_seconds=0.1)
    barrier = threading.Barrier(3)

    def build() -> None:
        barrier.wait()
        results.append(_build(BuildContext(context.entries), f"{registry.host}/both/train", base, patient))

    threads = [threading.Thread(target=build) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({(result.reference, result.tag) for result in results}) == 1
    assert len(results) == 3
    assert registry.list_uploads("both/train") == []
    root, _ = unpack_image(results[0].reference, tmp_path)
    assert (root / "app/big").read_bytes() == context.entries[0].content
