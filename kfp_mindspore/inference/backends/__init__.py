"""Where services run: on this machine, or as KServe InferenceServices."""
