"""Functions that run inside a KFP step; the only callers of the clients."""

from kfp_mindspore.steps.error_reporting import install_excepthook

install_excepthook()
