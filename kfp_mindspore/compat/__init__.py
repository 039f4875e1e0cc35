"""Patches for third-party libraries. Each module names the version it is for and the upstream fault.

A test for each fault runs the unpatched library: it fails when a new version has fixed the fault, and the patch can go.
"""
