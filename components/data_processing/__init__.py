"""KFP data processing."""
