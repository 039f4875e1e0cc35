from .run import compress as compress
