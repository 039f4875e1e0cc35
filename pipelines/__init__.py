"""Pipelines of this package; `kfp-mindspore run NAME` runs one locally."""
