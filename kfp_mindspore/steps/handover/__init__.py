"""Data hand-over between a launcher step and its job's pods."""
