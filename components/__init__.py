"""KFP components."""
