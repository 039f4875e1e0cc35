"""The MSJob controller. Its core is pure: `reconcile` maps the observed state to actions and a status."""

from __future__ import annotations

from kfp_mindspore.operator.decisions.actions import Action
from kfp_mindspore.operator.decisions.observed import Observed, view_endpoint_slice, view_pod_group, view_service
from kfp_mindspore.operator.decisions.pod_view import view_pod
from kfp_mindspore.operator.decisions.reconcile import Outcome, reconcile
from kfp_mindspore.operator.options import OperatorOptions

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
