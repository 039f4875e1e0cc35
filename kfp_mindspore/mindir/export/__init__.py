"""Bundles from checkpoints and from other programs' MindIR files, verified before they are written."""
