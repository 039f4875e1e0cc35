"""Pure decisions that all backends share: topology, restarts, elastic worker counts and devices."""
