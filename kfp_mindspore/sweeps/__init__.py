"""Sweeps: trials that run one training with other parameters, each an MSJob, chosen and stopped early by Optuna."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
