"""Review code where only Python is installed, as the pre-commit hook does.

python -m training.review train.py models/
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import get_args

from schemas.errors import ConfigError
from training.review.command import (
    Form,
    choose,
    review_changes,
    review_paths,
    revision_and_paths,
    rule_ids_in,
)


def main() -> int:
    """Print the findings. Return 0 if there are none, else 1; exit with 2 on wrong arguments."""
    parser = argparse.ArgumentParser(
        prog="bulkhead review", description="Well-known mistakes in PyTorch training code."
    )
    parser.add_argument("paths", nargs="*", type=Path, help="files, notebooks or folders")
    parser.add_argument("--diff", action="store_true", help="changed lines only: --diff [REV] PATH")
    parser.add_argument("--select", action="append", default=[], help="only these rules: BH1,BH301")
    parser.add_argument("--ignore", action="append", default=[], help="not these rules")
    parser.add_argument("--strict", action="store_true", help="also notes")
    parser.add_argument("--format", choices=get_args(Form), default="text")
    given = parser.parse_args()
    try:
        rules = choose(rule_ids_in(given.select), rule_ids_in(given.ignore), given.strict)
        reviewed = (
            review_changes(*revision_and_paths(given.paths), rules)
            if given.diff
            else review_paths(given.paths, rules)
        )
    except ConfigError as error:
        parser.error(str(error))
    print(reviewed.render(given.format))
    return 0 if reviewed.clean else 1


if __name__ == "__main__":
    sys.exit(main())
