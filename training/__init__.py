"""The torchrun program and everything it needs. Importing it loads neither Prefect nor MLflow."""
