"""Where a model is served: services, their client and backends, and the smoke test."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
