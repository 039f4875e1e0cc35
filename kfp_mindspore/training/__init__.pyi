from .distributed import Membership as Membership
from .distributed import join as join
from .environment import set_seed as set_seed
from .loop import FitResult as FitResult
from .loop import fit as fit
