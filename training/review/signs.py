"""With which sign a value goes into what `backward` is called on: through sums, names, lists, and
what functions of the file return.
"""

from __future__ import annotations

READ = {
    "item", "detach", "tolist", "numpy", "cpu", "print", "isnan", "isfinite", "float", "round",
    "log", "info", "debug", "add_scalar", "write", "len", "log_metrics",
}  # fmt: skip
