from .distributed import init_distributed as init_distributed
from .environment import set_seed as set_seed
from .loop import FitResult as FitResult
from .loop import fit as fit
