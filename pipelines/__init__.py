"""Pipelines in this package: `from kfp_mindspore.pipelines import digits_lifecycle`, or `kfp-mindspore run NAME`."""


def _attach_stub():
    # The import guard of kubeflow/pipelines-components allows the standard library and kfp at module level.
    from kfp_mindspore.compat.lazy_kfp import attach_stub

    return attach_stub(__name__, __file__)


__getattr__, __dir__, __all__ = _attach_stub()
