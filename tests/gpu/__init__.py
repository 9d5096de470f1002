"""Checks that a GPU computes as the CPU does: one table of checks, and its twin on the CPU in the
default tests.
"""
