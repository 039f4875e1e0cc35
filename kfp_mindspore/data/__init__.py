"""Datasets: sources, splits and preprocessing to a dataset directory, and its samples as the network's inputs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
