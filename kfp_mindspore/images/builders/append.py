"""Builds without a daemon: one layer of sources over a base image, by the registry's HTTP API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.images.builders.base import Builder
from kfp_mindspore.images.containerfile import SEARCH_PATHS
from kfp_mindspore.images.plan import ImagePlan
from kfp_mindspore.images.progress import BuildProgress, OnProgress
from kfp_mindspore.images.reference import Reference, parse_reference
from kfp_mindspore.images.registry.blob import (
    Blob,
    BytesBlob,
    RemoteBlob,
    has_blob,
    mount_blob,
    pull_bytes,
    push_blob,
)
from kfp_mindspore.images.registry.manifest import (
    LAYER_TYPES,
    OCI_MANIFEST,
    Manifest,
    fetch_manifest,
    make_manifest,
    push_manifest,
    require_manifest,
)
from kfp_mindspore.images.registry.session import RegistrySession
from kfp_mindspore.images.result import BuildResult
from kfp_mindspore.images.sources.layer import Layer

_CREATED_BY = "kfp-mindspore: append sources"
# That of container runtimes and builders for an image without one.
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class AppendBuilder(Builder):
    """Appends the sources as one layer to a base image in a registry, without a daemon, root or temporary files.

    The base image's layers are mounted from their repository, or copied from another registry. It runs no command:
    requirements must be in the base image.
    """

    def check(self, plan: ImagePlan) -> None:
        """Refuse requirements and an own Containerfile: both run commands."""
        if plan.options.containerfile:
            raise UserError(
                "Containerfile: the append builder runs no commands, so it cannot build an own one",
                hint="Use the docker or the cluster builder.",
            )
        if plan.options.requirements:
            raise UserError(
                f"requirements: the append builder installs nothing, got {', '.join(plan.options.requirements)}",
                hint="Use the docker or the cluster builder, or a base image with them.",
            )

    def make(self, plan: ImagePlan, target: Reference, on_progress: OnProgress) -> BuildResult:
        """Push the layer, the configurations and the manifests, and the tag last."""
        base = self.registry.locate(parse_reference(plan.options.base, field="base")).with_digest(plan.base_digest)
        with RegistrySession(base, self.registry) as source, RegistrySession(target, self.registry) as destination:
            append = _Append(plan, source, destination, on_progress)
            manifest = require_manifest(source, plan.base_digest, f"base image {plan.options.base}")
            image = append.append_index(manifest) if manifest.is_index else append.append_image(manifest)
            # By digest first, so that a tag never names a manifest that the registry stored wrong.
            push_manifest(destination, image, image.digest)
            push_manifest(destination, image, target.tag)
        return BuildResult(
            reference=str(target.with_digest(image.digest)),
            tag=target.tag,
            built=True,
            size_bytes=sum(append.sizes.values()),
            layers_sent=append.layers_sent,
            layers_reused=append.layers_reused,
            sent_bytes=append.sent_bytes,
            seconds=0.0,
        )


class _Append:
    """One build; platforms share uploads for equal layers."""

    def __init__(
        self, plan: ImagePlan, source: RegistrySession, destination: RegistrySession, on_progress: OnProgress
    ) -> None:
        self._plan, self._source, self._destination, self._on_progress = plan, source, destination, on_progress
        self._layer: Layer = plan.context.layer(plan.options.workdir)
        self.sizes: dict[str, int] = {}
        self.layers_sent = self.layers_reused = self.sent_bytes = 0

    def append_index(self, index: Manifest) -> Manifest:
        """Append to every platform's image, push the results and return their index."""
        entries = []
        for child in index.children:
            image = self.append_image(fetch_manifest(self._source, child["digest"]))
            push_manifest(self._destination, image, image.digest)
            entries.append(
                {
                    "mediaType": image.media_type,
                    "digest": image.digest,
                    "size": len(image.content),
                    "platform": child["platform"],
                }
            )
        if not entries:
            raise UserError(f"base image {self._plan.options.base}: its index has no runnable image")
        return make_manifest({"schemaVersion": 2, "mediaType": index.media_type, "manifests": entries})

    def append_image(self, base: Manifest) -> Manifest:
        """Push the layers and the image configuration over one base, and return its manifest."""
        configuration = json.loads(
            pull_bytes(self._source, base.fields["config"]["digest"], "read the configuration of")
        )
        for entry in base.fields["layers"]:
            self._transfer_layer(entry)
        self._push(self._layer, is_layer=True)
        image, content = compose_image(self._plan, base, configuration)
        self._push(content, is_layer=False)
        return image

    def _transfer_layer(self, entry: dict[str, Any]) -> None:
        """Make a base layer available in the destination: mount it, or copy it."""
        digest, size = entry["digest"], entry["size"]
        if entry.get("urls") or digest in self.sizes:
            return
        self.sizes[digest] = size
        source, destination = self._source, self._destination
        same_host = source.reference.host == destination.reference.host
        if has_blob(destination, digest) or (
            same_host and mount_blob(destination, digest, source.reference.repository)
        ):
            self.layers_reused += 1
            return
        self._upload(RemoteBlob(source, digest, size), "Copy layer")

    def _push(self, blob: Blob, *, is_layer: bool) -> None:
        if blob.digest in self.sizes:
            return
        self.sizes[blob.digest] = blob.size_bytes
        if not has_blob(self._destination, blob.digest):
            if is_layer:
                self._upload(blob, "Push layer")
            else:
                push_blob(self._destination, blob, lambda _: None)
        elif is_layer:
            self.layers_reused += 1

    def _upload(self, blob: Blob, step: str) -> None:
        head = blob.digest.partition(":")[2][:12]

        def report(done: int) -> None:
            self._on_progress(BuildProgress(step, head, done, blob.size_bytes))

        push_blob(self._destination, blob, report)
        self.layers_sent += 1
        self.sent_bytes += blob.size_bytes


def compose_image(
    plan: ImagePlan, base: Manifest, configuration: Mapping[str, Any], settings: Mapping[str, Any] | None = None
) -> tuple[Manifest, BytesBlob]:
    """Return the manifest and the configuration of an image: the plan's sources as a layer over a base image.

    Args:
        plan: The image plan.
        base: The base image's manifest for one platform.
        configuration: The base image's configuration.
        settings: Values of the configuration's `config` that replace the plan's, such as `Entrypoint`.
    """
    layer = plan.context.layer(plan.options.workdir)
    config = dict(configuration.get("config") or {})
    config["Env"] = _merge_env(config.get("Env") or [], dict(plan.options.env))
    config["Labels"] = {**(config.get("Labels") or {}), **plan.all_labels}
    config["WorkingDir"] = plan.options.workdir
    if plan.options.user:
        config["User"] = plan.options.user
    if plan.options.command:
        config["Cmd"] = list(plan.options.command)
    rootfs = configuration["rootfs"]
    composed = {
        **configuration,
        "config": {**config, **(settings or {})},
        "created": plan.created_text,
        "rootfs": {**rootfs, "diff_ids": [*rootfs["diff_ids"], layer.digest]},
        "history": [*(configuration.get("history") or []), {"created": plan.created_text, "created_by": _CREATED_BY}],
    }
    content = BytesBlob(json.dumps(composed, sort_keys=True, separators=(",", ":")).encode())
    fields = {
        "schemaVersion": 2,
        "mediaType": base.media_type,
        "config": {"mediaType": base.fields["config"]["mediaType"], **_describe(content)},
        "layers": [*base.fields["layers"], {"mediaType": LAYER_TYPES[base.media_type], **_describe(layer)}],
    }
    if base.media_type == OCI_MANIFEST:
        fields["annotations"] = plan.all_labels
    return make_manifest(fields), content


def _describe(blob: Blob) -> dict[str, Any]:
    return {"digest": blob.digest, "size": blob.size_bytes}


def _merge_env(base: list[str], env: dict[str, str]) -> list[str]:
    """Return the environment; like a Containerfile, search paths precede the base image's."""
    before = {"PATH": _DEFAULT_PATH, **{name: value for name, _, value in (pair.partition("=") for pair in base)}}
    kept = [pair for pair in base if pair.partition("=")[0] not in env]
    added = []
    for name, value in sorted(env.items()):
        rest = before.get(name, "") if name in SEARCH_PATHS else ""
        added.append(f"{name}={value}:{rest}" if rest else f"{name}={value}")
    return [*kept, *added]
