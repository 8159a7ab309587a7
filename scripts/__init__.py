"""Set-up, demo, lessons, checks and tests: what `make`, CI and the README call."""
