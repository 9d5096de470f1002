"""Built-in networks and `build.py`, which resolves a declaration to one."""
