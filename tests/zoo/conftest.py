"""The programs here are read by the review and never run: some are wrong on purpose, and to collect
them would be to run them.
"""

collect_ignore = ["faulty", "scripts", "sound"]
