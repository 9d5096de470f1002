"""HTML pages: the report of a run, an audit, a re-evaluation."""
