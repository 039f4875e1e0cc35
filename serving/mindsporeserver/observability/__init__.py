"""The server's observability: metrics, logs and traces."""
