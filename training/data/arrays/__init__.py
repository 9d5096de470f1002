"""Arrays of the sides: writing, reading and packing."""
