"""Runs on a Kubeflow Pipelines server by kfp.Client."""
