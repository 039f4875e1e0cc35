"""This package's Kubernetes client: objects as JSON, server-side apply, watches, logs."""
