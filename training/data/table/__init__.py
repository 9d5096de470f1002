"""The typed and validated table."""
