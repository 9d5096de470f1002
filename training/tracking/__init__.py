"""MLflow and TensorBoard."""
