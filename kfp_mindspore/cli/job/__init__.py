"""`kfp-mindspore job`: its commands, the job that they submit, and their output."""

from kfp_mindspore.cli.job.commands import job as job
