"""Programs that run in a peer's environment; they import nothing from this project."""
