"""A training step and an evaluation: losses, gradients, learning rates, dropout masks, metrics."""
