"""Source readers: one module for each format; all return a `Source`."""
