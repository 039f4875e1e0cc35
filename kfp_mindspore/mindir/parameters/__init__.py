"""Networks by name with their parameters: any script's files, slices of parallel training, cut widths."""
