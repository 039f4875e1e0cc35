"""Training code for the workload `text_classification`: classes of texts from their words."""
