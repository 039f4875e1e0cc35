"""Checks before the first epoch, and short messages for compilation errors."""
