"""A Kubernetes cluster, as the API server has it: objects as JSON types, verbs, watches, logs, typed errors."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
