"""Flows: compositions of tasks that read like a table of contents."""
