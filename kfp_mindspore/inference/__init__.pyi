from .backends.kserve import KServeBackend as KServeBackend
from .backends.local import LocalServingBackend as LocalServingBackend
from .client import InferenceClient as InferenceClient
from .manifest import build_inference_service as build_inference_service
from .service import Service as Service
from .smoke import run_smoke_test as run_smoke_test
