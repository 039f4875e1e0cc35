"""Installation options, and the installation's fixed names."""

from __future__ import annotations

from dataclasses import dataclass

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.kube.names import list_namespace_errors
from kfp_mindspore.operator.options import GANG_SCHEDULERS, POD_SECURITY, GangScheduler, PodSecurity
from kfp_mindspore.options import option
from kfp_mindspore.settings import PLACEHOLDER_OPERATOR_IMAGE

NAME = "msjob-controller"
NAMESPACE = "msjob-system"


@dataclass(frozen=True)
class InstallOptions:
    """Installation options.

    Attributes:
        image: The operator's image, by digest when it matters.
        namespace: Operator namespace.
        watched: The jobs' namespaces; empty for all.
        gang_scheduler: `none`, `volcano` or `scheduler-plugins`.
        kueue: Whether jobs with a queue label wait for Kueue's admission.
        istio_sidecar: Whether Istio may inject its sidecar into job pods.
        pod_security: `restricted` adds what that Pod Security level requires to job pods; `none` adds nothing.
        replicas: Operator pod count; one pod is the leader.
    """

    image: str = PLACEHOLDER_OPERATOR_IMAGE
    namespace: str = NAMESPACE
    watched: tuple[str, ...] = ()
    gang_scheduler: GangScheduler = option("none", enum=GANG_SCHEDULERS)
    kueue: bool = False
    istio_sidecar: bool = False
    pod_security: PodSecurity = option("restricted", enum=POD_SECURITY)
    replicas: int = option(2, minimum=1)

    def __post_init__(self) -> None:
        errors = []
        if not self.image or any(character.isspace() for character in self.image):
            errors.append(f"image: must be an image such as registry.example.com/operator@sha256:…, got {self.image!r}")
        errors.extend(list_namespace_errors("operator namespace", self.namespace))
        errors.extend(list_namespace_errors("namespace", *self.watched))
        if self.gang_scheduler not in GANG_SCHEDULERS:
            errors.append(f"gang_scheduler: must be one of {', '.join(GANG_SCHEDULERS)}, got {self.gang_scheduler!r}")
        if self.pod_security not in POD_SECURITY:
            errors.append(f"pod_security: must be one of {', '.join(POD_SECURITY)}, got {self.pod_security!r}")
        if self.replicas < 1:
            errors.append(f"replicas: must be ≥ 1, got {self.replicas}")
        if errors:
            raise ValidationError(errors, subject="installation")
