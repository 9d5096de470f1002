"""The training loop: batches, steps, validation, scoring and the result files of a run."""
