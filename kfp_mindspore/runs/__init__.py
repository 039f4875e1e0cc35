"""What runs a pipeline: on this machine by kfp.local, or on a cluster by kfp.Client."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
