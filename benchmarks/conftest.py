"""Programs to ignore: they need their own environments, with packages that this project lacks."""

collect_ignore = ["leaks/workers", "preparation/peers"]
