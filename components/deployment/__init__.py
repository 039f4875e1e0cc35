"""Components that deploy and test models."""
