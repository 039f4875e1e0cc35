from .load import load_dataset as load_dataset
from .samples import read_samples as read_samples
