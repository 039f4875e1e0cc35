"""Reports of a running training: progress events, epoch lines, seconds by activity."""
