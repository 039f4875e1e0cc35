"""One process of a gang: its share of the samples, its watchdog, its SIGTERM."""
