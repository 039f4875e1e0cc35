from .config import TrainingConfig as TrainingConfig
from .distributed import init_distributed as init_distributed
from .loop import fit as fit
from .loop import set_seed as set_seed
from .schedules import Schedule as Schedule
