"""KFP pipelines."""
