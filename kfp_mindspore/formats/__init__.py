"""On-disk contracts (model bundle, checkpoint, dataset), read and written without MindSpore."""
