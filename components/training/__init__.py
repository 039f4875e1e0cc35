"""KFP training."""
