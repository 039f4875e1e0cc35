"""Training code of the workload `two_inputs`: a classifier of samples with two inputs."""
