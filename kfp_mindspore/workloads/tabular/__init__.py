"""Training code of the workload `tabular`: a classifier of rows of numbers."""
