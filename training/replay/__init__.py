"""Repeat a step that was not finite."""
