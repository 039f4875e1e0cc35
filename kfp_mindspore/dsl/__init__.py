"""KFP extension for pipeline authors: `@msjob_component` and setters for a task's MSJob."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
