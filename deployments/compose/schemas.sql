-- Each server keeps its tables in a schema of its own, because both call their version table alike.
CREATE SCHEMA prefect;
CREATE SCHEMA mlflow;
