"""Training code of the workload `wide_deep`: a recommender over ids of users and movies and their genres."""
