"""What a run needs of the cluster: rights, Secrets, definitions and images, declared and checked."""
