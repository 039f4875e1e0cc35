"""Training code of the bundled pipelines: LeNet-5 on scikit-learn's digits, an example of a user's code."""
