"""One process of a gang: share of the samples, watchdog, SIGTERM."""
