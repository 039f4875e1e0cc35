"""Training inside a script: `fit` with callbacks, checkpoints, resume and data parallelism.

Import it before `mindspore`: MindSpore reads its log level when it is imported.
"""

import lazy_loader

from kfp_mindspore.mindir.environment import set_defaults as _set_defaults

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

_set_defaults()
