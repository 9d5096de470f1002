"""DuckDB, Spark and the order in which rows are read."""
