"""What a run needs on its cluster: rights, Secrets, definitions and images, declared and checked."""
