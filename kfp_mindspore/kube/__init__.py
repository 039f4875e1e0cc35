"""The Kubernetes client of this package: objects as JSON, server-side apply, watches, logs."""
