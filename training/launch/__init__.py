"""Start of torchrun on one or several machines, and the stop signal."""
