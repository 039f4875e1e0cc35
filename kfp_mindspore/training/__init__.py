"""What runs inside a training script: `fit`, its callbacks, checkpoints, resume and data parallelism.

Any script can train; this room is for those that want checkpoints, resume, metrics and data parallelism by one call.
Import it before `mindspore`: MindSpore reads its log level when it is imported.
"""

import lazy_loader

from kfp_mindspore.training.environment import quieten as _quieten

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

_quieten()
