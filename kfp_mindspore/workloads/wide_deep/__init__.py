"""Training code for the workload `wide_deep`: a recommender over user and movie ids and genres."""
