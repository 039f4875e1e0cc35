"""What is served: bundles as models, their batches, their versions, and where they come from."""
