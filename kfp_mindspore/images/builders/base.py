"""What every builder does, and what they have in common: an image that the registry has is not built again."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import replace

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.images.plan import ImagePlan
from kfp_mindspore.images.reference import Reference, parse_reference, parse_repository
from kfp_mindspore.images.registry.configuration import RegistryConfig
from kfp_mindspore.images.registry.images import find_image, resolve_image
from kfp_mindspore.images.result import BuildResult, OnProgress


def ignore_progress(_: object) -> None:
    """Take a `Progress` and show nothing."""


class Builder(ABC):
    """Makes the image of a plan and pushes it.

    Args:
        registry: How registries are reached.
    """

    def __init__(self, registry: RegistryConfig | None = None) -> None:
        self.registry = registry or RegistryConfig()

    def resolve_base(self, base: str, platform: str) -> str:
        """Return the digest of the base image's manifest (of its index when the platform is `all`).

        Args:
            base: Name of the base image.
            platform: Such as `linux/amd64`, or `all`.

        Raises:
            NotFoundError: The registry has no such image, or not for this platform.
        """
        return resolve_image(parse_reference(base, field="base"), platform, self.registry)

    def build(self, plan: ImagePlan, destination: str, *, on_progress: OnProgress = ignore_progress) -> BuildResult:
        """Build and push, unless the repository has the plan's tag.

        Args:
            plan: What the image is made of.
            destination: Repository to push to, `host/name` without a tag: the tag is the plan's.
            on_progress: Called with what moves, from the calling thread.

        Raises:
            UserError: The plan asks for what this builder cannot do, or credentials are missing or refused.
            KfpMindSporeError: The build or the registry failed; no tag was set.
        """
        started = time.perf_counter()
        target = parse_repository(destination).with_tag(plan.tag)
        self.check(plan)
        found = find_image(target, plan.identity_labels, self.registry)
        if found is not None:
            return replace(found, seconds=time.perf_counter() - started)
        result = self.make(plan, target, on_progress)
        return replace(result, seconds=time.perf_counter() - started)

    def check(self, plan: ImagePlan) -> None:  # noqa: B027
        """Refuse what this builder cannot do, before the registry is asked anything.

        Raises:
            UserError: The plan asks for something that another builder can do; the hint names it.
        """

    def verify_push(self, plan: ImagePlan, target: Reference, digest: str) -> BuildResult:
        """Return the image of the plan's tag after a push.

        Raises:
            KfpMindSporeError: The tag does not have the digest that was pushed.
        """
        found = find_image(target, plan.identity_labels, self.registry)
        if found is None or found.digest != digest:
            raise KfpMindSporeError(
                f"{target}: pushed {digest}, the registry has {found.digest if found else 'no such tag'}",
                hint="Another push replaced the tag; build again.",
            )
        return replace(found, built=True)

    @abstractmethod
    def make(self, plan: ImagePlan, target: Reference, on_progress: OnProgress) -> BuildResult:
        """Build the image, push it to `target` (repository and tag) and return it by digest.

        The tag is set last, so that it never names half an image. `seconds` is filled in by `build`.
        """
