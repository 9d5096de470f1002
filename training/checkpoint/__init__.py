"""Checkpoints: state of a run, written, verified and restored."""
