"""Trackers: a training's parameters and learning curves in MLflow and TensorBoard.

Rank 0 logs. A tracker has every point once, also when the training resumes from a checkpoint, and delays no step.
"""
