"""Training code of the workload `tabular`: classes or numbers from rows of numbers."""
