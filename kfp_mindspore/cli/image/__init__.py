"""`kfp-mindspore image`: its commands, their options and the build progress."""

from kfp_mindspore.cli.image.commands import image as image
