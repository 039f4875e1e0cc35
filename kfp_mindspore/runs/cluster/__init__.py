"""What a run needs of its cluster: rights, Secrets, definitions and images, declared and checked."""
