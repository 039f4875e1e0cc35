"""The component `rollback_kserve`."""

from .component import rollback_kserve

__all__ = ["rollback_kserve"]
