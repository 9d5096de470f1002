"""Quality of models on tables, next to other libraries on the same rows."""
