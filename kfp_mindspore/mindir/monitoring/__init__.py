"""A model's inputs and predictions in production, compared with those of its training."""
