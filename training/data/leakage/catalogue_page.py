"""Write `docs/leaks.md` from the catalogue.

Run `python -m training.data.leakage.catalogue_page docs/leaks.md`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from schemas.checks_config import ChecksConfig
from training.data.leakage.catalogue import CATALOGUE, Explanation, how_to_allow

HEAD = """# Leak checks

Written by `make docs` from `training/data/leakage/catalogue.py`. How much each finds, and how often it is wrong, stands
in [benchmarks-leaks.md](benchmarks-leaks.md).

A check passes, warns, fails, or is allowed. A failing one stops a run before anything is trained. A finding is
allowed with a reason of at least ten letters, which is logged with the model:

```yaml
checks:
  allow: [{check: label_proxy, column: dose, reason: "the dose is set before the outcome, see the protocol"}]
```
"""  # noqa: E501


def catalogue_page() -> str:
    """Return the page as Markdown."""
    listed = "\n".join(
        f"* [`{name}`](#{name}): {entry.title[:1].lower()}{entry.title[1:]}"
        for name, entry in CATALOGUE.items()
    )
    return (
        "\n".join([HEAD, listed, *(_entry(name, entry) for name, entry in CATALOGUE.items())])
        + "\n"
    )


def _entry(name: str, entry: Explanation) -> str:
    settings = "; ".join(
        f"`checks.{field}` ({ChecksConfig.model_fields[field].default:g})"
        for field in entry.thresholds
    )
    lines = {
        "Looks for": entry.looks_for,
        "Statistic": entry.statistic,
        "Threshold": settings or "none: it is there or it is not",
        "Few false alarms because": entry.few_alarms,
        "How it inflates the score": entry.inflates,
        "What to do": entry.remedy,
        "Cost": entry.cost,
        "Allow": f"`{how_to_allow(name)}`",
    }
    return f"\n## {name}\n\n**{entry.title}.**\n\n" + "\n".join(
        f"* **{what}:** {text}" for what, text in lines.items()
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(catalogue_page(), encoding="utf-8")
