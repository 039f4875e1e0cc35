"""What `make release` makes of a commit: files that an owner of the project publishes."""
