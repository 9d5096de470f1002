"""Start of torchrun on one or several machines, and the signal to stop."""
