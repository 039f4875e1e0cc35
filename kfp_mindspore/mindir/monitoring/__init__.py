"""A model's inputs and predictions in production, compared with its training data."""
