"""Assign rows to splits: groups, times, strata, folds and the ledger."""
