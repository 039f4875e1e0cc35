"""Trackers: a training's parameters and learning curves in MLflow and TensorBoard.

Rank 0 logs. A tracker has every point once, also when the training resumes from a checkpoint, and delays no step.
"""

from kfp_mindspore.tracking.tracker import Tracker, TrackerState
from kfp_mindspore.tracking.trackers import TRACKERS, Trackers, open_trackers, tag_runs

__all__ = ["TRACKERS", "Tracker", "TrackerState", "Trackers", "open_trackers", "tag_runs"]
