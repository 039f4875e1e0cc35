"""The MSJob controller. Its core is pure: `reconcile` maps the observed state to actions and a status."""
