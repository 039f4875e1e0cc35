"""The MSJob controller. The core is pure: `reconcile` maps the observed state to actions and a status."""
