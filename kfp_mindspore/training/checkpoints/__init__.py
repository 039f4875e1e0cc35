"""A run's state, copies in checkpoints, and initial weights from earlier ones."""
