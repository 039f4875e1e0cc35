from .training.digits_lifecycle.pipeline import digits_lifecycle as digits_lifecycle
