from .local import run_local as run_local
from .progress import ProgressDisplay as ProgressDisplay
from .remote import RemoteClient as RemoteClient
from .resume import resume_local as resume_local
from .sources import compile_text as compile_text
