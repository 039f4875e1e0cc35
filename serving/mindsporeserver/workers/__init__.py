"""`--workers N`: several processes on the same ports that serve the same models."""
