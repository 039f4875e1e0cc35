from .comparison import compare_predictions as compare_predictions
from .metrics import get_metric as get_metric
from .selection import select_samples as select_samples
from .summaries import compute_confusion as compute_confusion
