"""Measurements that a person can repeat: each module is one command, prints a table, and takes `--json`."""
