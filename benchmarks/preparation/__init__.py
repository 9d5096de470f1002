"""Preparation against what a user would write instead: run `python -m benchmarks.prepare`."""
