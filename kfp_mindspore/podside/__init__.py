"""Entry points in job pods: artifacts, functions, foreign launchers, warm spares."""
