"""Rows that belong together: what could tie them, and how far a score rests on it.

Used by the check `dependence` and by `bulkhead init`. Nothing here reads a file.
"""
