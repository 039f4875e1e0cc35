"""Networks as a server runs them: caches per slot, adapters per request, and a router for replicas."""
