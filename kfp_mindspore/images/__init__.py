"""Images: from a notebook, a function, a script or a folder to a digest, with or without a Docker daemon."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
