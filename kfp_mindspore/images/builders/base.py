"""Builder base class."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.images.plan import ImagePlan
from kfp_mindspore.images.progress import OnProgress, ignore_progress
from kfp_mindspore.images.reference import Reference, parse_reference, parse_repository
from kfp_mindspore.images.registry.configuration import RegistryConfig
from kfp_mindspore.images.registry.images import get_built_image, resolve_image
from kfp_mindspore.images.result import BuildResult


class Builder(ABC):
    """Builds a plan's image and pushes it.

    Args:
        registry: How registries are reached.
    """

    def __init__(self, registry: RegistryConfig | None = None) -> None:
        self.registry = registry or RegistryConfig()
        self.secrets: Mapping[str, Any] = {}

    def resolve_base(self, base: str, platform: str) -> str:
        """Return the digest of the base image's manifest (its index when the platform is `all`).

        Args:
            base: The base image's name.
            platform: Such as `linux/amd64`, or `all`.

        Raises:
            NotFoundError: The registry has no such image, or not for this platform.
        """
        return resolve_image(parse_reference(base, field="base"), platform, self.registry)

    def build(self, plan: ImagePlan, destination: str, *, on_progress: OnProgress = ignore_progress) -> BuildResult:
        """Build and push, unless the repository has the plan's image.

        Args:
            plan: The image plan.
            destination: Repository to push to, `host/name` without a tag: the tag is the plan's.
            on_progress: Called with the progress, from the calling thread.

        Raises:
            UserError: The builder does not support the plan, or credentials are missing or refused.
            KfpMindSporeError: The build or the registry failed; no tag was set.
        """
        started = time.perf_counter()
        target = parse_repository(destination).with_tag(plan.tag)
        self.check(plan)
        result = get_built_image(target, plan.identity_labels, self.registry)
        if result is None:
            result = self.make(plan, target, on_progress)
        return replace(result, seconds=time.perf_counter() - started)

    def check(self, plan: ImagePlan) -> None:  # noqa: B027
        """Validate that the builder supports a plan, without a request to the registry.

        Raises:
            UserError: It does not; the hint names a builder that does.
        """

    def verify_push(self, plan: ImagePlan, target: Reference, digest: str) -> BuildResult:
        """Return the image under the plan's tag after a push.

        Raises:
            KfpMindSporeError: The tag does not have the digest that was pushed.
        """
        found = get_built_image(target, plan.identity_labels, self.registry)
        if found is None or found.digest != digest:
            raise KfpMindSporeError(
                f"{target}: pushed {digest}, the registry has {found.digest if found else 'no such tag'}",
                hint="Another push replaced the tag; build again.",
            )
        return replace(found, built=True)

    @abstractmethod
    def make(self, plan: ImagePlan, target: Reference, on_progress: OnProgress) -> BuildResult:
        """Build the image, push it to `target` (repository and tag) and return it by digest.

        The tag is set last, so that it never names a partial image. `build` sets `seconds`.
        """
