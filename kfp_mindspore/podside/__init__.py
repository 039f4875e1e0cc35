"""Entry points in the pods of jobs: artifacts, functions, foreign launchers, warm spares."""
