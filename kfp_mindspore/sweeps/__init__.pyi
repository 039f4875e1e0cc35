from .engine import resume_sweep as resume_sweep
from .engine import sweep as sweep
from .report import describe_trial as describe_trial
from .space import Parameter as Parameter
