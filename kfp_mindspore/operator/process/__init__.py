"""The operator process: it elects a leader, watches, queues, applies actions and reports."""
