from .compiled.sources import compile_text as compile_text
from .local.resume import resume_local as resume_local
from .local.run import run_local as run_local
from .remote.client import RemoteClient as RemoteClient
