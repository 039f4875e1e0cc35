"""Training code for the workload `tabular`: classes or numbers from number rows."""
