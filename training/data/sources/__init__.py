"""Files, folders and addresses that rows come from."""
