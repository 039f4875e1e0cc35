"""Training code for the workload `detection`: a YOLOS detector for small pictures."""
