"""The runtime image: this package with MindSpore, for component steps and job pods."""
