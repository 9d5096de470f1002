"""Checkpoints: state of a run, how it is written, verified and restored."""
