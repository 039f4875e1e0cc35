"""The component `deploy_kserve`."""

from kfp_mindspore.components.deployment.deploy_kserve.component import deploy_kserve

__all__ = ["deploy_kserve"]
