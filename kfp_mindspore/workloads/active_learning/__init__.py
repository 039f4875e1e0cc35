"""Training code of the workload `active_learning`: a classifier of images for rounds with few labels."""
