from .options import CompressionOptions as CompressionOptions
from .result import CompressionResult as CompressionResult
from .run import compress as compress
