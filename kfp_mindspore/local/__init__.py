"""Local processes: supervisors, leases and log files."""
