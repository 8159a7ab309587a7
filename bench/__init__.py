"""Speed, memory and error, measured by hand and never in timed tests: docs/experiments.md."""
