"""The registered model: its program, columns and signature."""
