"""Training code for the workload `sequence`: a classifier for lists of unequal lengths."""
