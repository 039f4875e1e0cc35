"""The component `deploy_kserve`."""

from .component import deploy_kserve

__all__ = ["deploy_kserve"]
