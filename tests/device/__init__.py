"""A run on a GPU or NPU, by `make test-device`; no test of `make test` needs one."""
