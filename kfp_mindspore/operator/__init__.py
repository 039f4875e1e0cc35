"""The MSJob controller. Its core is pure: `reconcile` maps the observed state to actions and a status."""

from __future__ import annotations

from kfp_mindspore.operator.actions import Action
from kfp_mindspore.operator.observed import Observed, view_endpoint_slice, view_pod_group, view_service
from kfp_mindspore.operator.options import OperatorOptions
from kfp_mindspore.operator.pod_view import view_pod
from kfp_mindspore.operator.reconcile import Outcome, reconcile

__all__ = [
    "Action",
    "Observed",
    "OperatorOptions",
    "Outcome",
    "reconcile",
    "view_endpoint_slice",
    "view_pod",
    "view_pod_group",
    "view_service",
]
