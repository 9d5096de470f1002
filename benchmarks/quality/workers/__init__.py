"""Programs that run in environments of other libraries."""
