"""What a run needs on the cluster: rights, Secrets, definitions and images, declared and checked."""
