"""Training code for the workload `active_learning`: an image classifier for rounds with few labels."""
