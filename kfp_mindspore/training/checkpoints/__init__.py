"""A run's state, its copies in checkpoints, and initial weights from earlier ones."""
