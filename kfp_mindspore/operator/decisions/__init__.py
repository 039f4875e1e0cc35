"""Pure decisions on one job: from observed objects to actions, manifests and a status."""
