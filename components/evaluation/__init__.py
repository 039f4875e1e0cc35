"""KFP evaluation."""
