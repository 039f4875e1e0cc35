"""The component `deploy_graph`."""

from .component import deploy_graph

__all__ = ["deploy_graph"]
