from .engine import resume_sweep as resume_sweep
from .engine import sweep as sweep
from .options import SweepOptions as SweepOptions
from .report import render_report as render_report
from .space import Space as Space
from .study import SweepResult as SweepResult
from .study import TrialResult as TrialResult
from .study import read_sweep as read_sweep
