"""Statistics of train rows."""
