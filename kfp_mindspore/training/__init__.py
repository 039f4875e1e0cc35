"""What runs inside a training script: `fit`, its callbacks, checkpoints, resume and data parallelism.

Any script can train; this room is for those that want checkpoints, resume, metrics and data parallelism by one call.
Import it before `mindspore`: MindSpore reads its log level when it is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kfp_mindspore.training.environment import quieten as _quieten

if TYPE_CHECKING:
    from kfp_mindspore.training.distributed import Membership, join
    from kfp_mindspore.training.environment import set_seed
    from kfp_mindspore.training.loop import FitResult, fit

__all__ = ["FitResult", "Membership", "fit", "join", "set_seed"]

_HOMES = {
    "FitResult": "loop",
    "Membership": "distributed",
    "fit": "loop",
    "join": "distributed",
    "set_seed": "environment",
}

_quieten()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
