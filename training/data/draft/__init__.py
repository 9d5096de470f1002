"""A declaration drafted from a table."""
