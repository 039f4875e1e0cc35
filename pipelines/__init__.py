"""Pipelines that come with this package; `kfp-mindspore run NAME` runs one here."""
