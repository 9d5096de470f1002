"""Losses, metrics and intervals of the tasks."""
