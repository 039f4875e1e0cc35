"""Results of runs, from their events to a progress display and an HTML page."""
