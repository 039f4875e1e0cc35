"""Pure decisions on one job: from its observed objects to actions, manifests and a status."""
