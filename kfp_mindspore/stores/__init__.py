"""Object stores for checkpoints, artifacts and data: credentials, one way to open a URI, one commit protocol."""
