"""The KFP extension: `@msjob_component`, and setters of the MSJob that a task makes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
