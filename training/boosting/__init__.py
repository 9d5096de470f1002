"""Gradient boosting with scikit-learn: inputs, fits, their trees as arrays, and the run of one."""
