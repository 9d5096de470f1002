"""`docs/review-rules.md` from the rules: `python -m training.review.rules_page docs/review-rules.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from training.review.formats import explain
from training.review.rules import KNOWN
from training.review.sources import ABOUT_FILES

HEAD = """# Rules of the review

Written by `make docs` from `training/review/rules_*.py`; a test runs every piece of code below: what is called wrong is
found by its rule and by no other, what is called right by none; those from BH801 on are told of programs that are run, and tests run such programs. How to use the review stands in [review.md](review.md).
"""


def rules_page() -> str:
    """The page as Markdown."""
    listed = "\n".join(f"* [{rule.id}](#{rule.id.lower()}-{rule.name}) {rule.severity}: {rule.title}" for rule in KNOWN.values())
    about = "\n".join(f"* {id} {name}: {told}" for id, (name, told) in ABOUT_FILES.items())
    return "\n".join([HEAD, listed, "", "And about files and comments themselves:", "", about, "", *(explain(rule) + "\n" for rule in KNOWN.values())])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(rules_page(), encoding="utf-8")
