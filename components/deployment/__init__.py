"""KFP deployment."""
