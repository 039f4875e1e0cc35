"""Training code for the workload `vit`: a Vision Transformer for small images."""
