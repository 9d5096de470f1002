"""Arrays of the splits: writing, reading and packing."""
