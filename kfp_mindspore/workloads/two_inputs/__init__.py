"""Training code for the workload `two_inputs`: a classifier for samples with two inputs."""
