"""MindSpore on Ray: Train, Tune, Data, Serve, and RayJobs."""
