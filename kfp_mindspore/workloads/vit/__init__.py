"""Training code of the workload `vit`: a Vision Transformer for small images."""
