"""Image registries by their HTTP API: read and push manifests and blobs."""
