"""Measurements that a person can repeat: each module is one command, prints a table, and takes
`--json`.
"""

import training  # noqa: F401  # says how idle threads wait, which must be known before torch is loaded
