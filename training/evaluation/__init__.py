"""Evaluation of the best weights, baselines and cross-validation."""
