"""Functions that run inside a KFP step; the clients' only callers."""

from kfp_mindspore.steps.error_reporting import install_excepthook

install_excepthook()
