"""Data hand-over between a launcher step and the job's pods."""
