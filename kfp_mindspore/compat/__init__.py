"""Patches of third-party libraries: each names the version it is for and the upstream fault."""
