"""Typed and validated table."""
