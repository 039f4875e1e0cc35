"""Data hand-over between a launcher step and job pods."""
