"""What must stay equal while the tree is rebuilt, recorded as it was: weights, command line,
findings, records, a registered model.

    python -m tests.golden.record --help

The tests go through what outlives a move of files: declarations, records of `schemas`, `python -m
training.main` and `bulkhead`.
"""
