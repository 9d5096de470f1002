"""Draft a declaration from a table."""
