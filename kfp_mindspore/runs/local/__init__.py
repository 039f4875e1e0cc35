"""Runs on this machine by kfp.local: start, cache, history and resume."""
