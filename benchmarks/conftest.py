"""Programs that run in environments of their own, with packages that this project does not have."""

collect_ignore = ["leaks/workers", "preparation/peers"]
