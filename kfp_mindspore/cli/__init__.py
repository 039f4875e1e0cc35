"""The command `kfp-mindspore`: a module for each command group, and what they print."""
