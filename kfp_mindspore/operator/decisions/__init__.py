"""Pure decisions on one job: from the observed objects to actions, manifests and a status."""
