"""MindSpore on Ray: Train, Tune, Data, Serve, and RayJobs."""

from typing import Any

import lazy_loader

from kfp_mindspore.ray.version import check_ray

_get_name, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in __all__:
        check_ray()
    return _get_name(name)
