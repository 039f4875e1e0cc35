"""Components that deploy models and test what is deployed."""
