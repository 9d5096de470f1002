"""Command line `bulkhead`."""

from flows.cli.main import app, main

__all__ = ["app", "main"]
