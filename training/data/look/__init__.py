"""A first look at a table: facts of its columns, rows and order, before any declaration."""
