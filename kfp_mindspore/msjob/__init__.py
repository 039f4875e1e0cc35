"""Training jobs: MSJob's types, validation and topology, and the client that runs them on a backend."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
