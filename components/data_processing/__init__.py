"""Components that load and prepare data."""
