"""On-disk contracts, readable without MindSpore: dataset, checkpoint, signature, bundle."""
