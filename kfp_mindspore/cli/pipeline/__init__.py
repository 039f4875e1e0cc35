"""`kfp-mindspore pipeline`: commands on packages, on a cluster's set-up and on runs."""

from kfp_mindspore.cli.pipeline.commands import pipeline as pipeline
