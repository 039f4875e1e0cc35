"""Sources of an image: a folder, script, function or notebook as a deterministic build context."""
