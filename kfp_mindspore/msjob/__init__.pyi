from .backends.kubernetes import KubernetesBackend as KubernetesBackend
from .backends.local import LocalBackend as LocalBackend
from .build import build_msjob as build_msjob
from .client import MSJobClient as MSJobClient
from .follow import run_job as run_job
from .types import MSJob as MSJob
