"""Compression of trained networks: structured pruning with fine-tuning, and packed weights."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
