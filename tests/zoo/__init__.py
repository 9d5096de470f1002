"""Programs with one planted mistake each, and sound ones, for preflight and review."""
