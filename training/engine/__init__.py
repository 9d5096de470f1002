"""The training loop: batches, steps, validation, scoring and what a run leaves."""
