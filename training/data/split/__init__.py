"""Sides of rows: groups, times, strata, folds and the ledger."""
