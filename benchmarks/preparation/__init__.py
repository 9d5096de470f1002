"""Preparation compared with what a user would write: run `python -m benchmarks.prepare`."""
