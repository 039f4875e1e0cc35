"""Steps that several training pipelines share, as plain functions: KFP runs one more driver for a nested pipeline."""
