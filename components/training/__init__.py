"""Components that train and export models."""
