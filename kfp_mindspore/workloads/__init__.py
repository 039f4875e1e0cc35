"""Training code of the bundled workloads, one package each: a network, its training script, and what is its own."""
