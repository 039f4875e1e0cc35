from .data.load import load_dataset as load_dataset
from .dsl.component import msjob_component as msjob_component
from .images.build import build_image as build_image
from .inference.client import InferenceClient as InferenceClient
from .mindir.export.checkpoint import export_mindir as export_mindir
from .msjob.client import MSJobClient as MSJobClient
from .runs.local.run import run_local as run_local
from .training.config import TrainingConfig as TrainingConfig
from .training.loop import fit as fit

__version__: str
