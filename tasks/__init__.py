"""Prefect tasks, one family per file: load a reference, call one pure function, write, return a
reference.
"""
