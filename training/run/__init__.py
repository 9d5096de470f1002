"""Files of a run: record, lease, metrics, provenance."""
