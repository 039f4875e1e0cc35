"""Training code for the workload `language_model`: a small causal transformer over characters."""
