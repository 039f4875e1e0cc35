"""The command `kfp-mindspore`: a module for each group of its commands, and what they print."""
