"""The bundled workloads' training code, one package each: a network, its training script, and what is its own."""
