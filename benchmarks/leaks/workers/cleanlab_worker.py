"""Cleanlab's Datalab in its own environment, over train and test together.

Reads one job a line and writes the findings as one line. A near-duplicate counts if its set has
rows of both.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import warnings
from typing import Any


def main() -> None:
    """Answer jobs until the input ends."""
    warnings.filterwarnings("ignore")
    try:
        import cleanlab
        import pandas as pd
        from cleanlab import Datalab
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:200]}), flush=True)
        return
    print(json.dumps({"version": cleanlab.__version__}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            frames = [pd.read_parquet(job[side]) for side in ("train", "test")]
            print(json.dumps({"findings": run(Datalab, pd, frames, job["roles"])}), flush=True)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"[:200]}), flush=True)


def run(Datalab: Any, pd: Any, frames: list[Any], roles: dict[str, str]) -> list[dict[str, str]]:
    """Find near-duplicates between train and test, and rows that are not independent, over scaled
    numbers and coded categories.
    """
    whole = pd.concat(frames, ignore_index=True)
    features = whole.drop(columns=[c for c in set(roles.values()) if c in whole])
    coded = features.apply(
        lambda c: c if c.dtype.kind in "iuf" else pd.Series(pd.factorize(c)[0], index=c.index)
    ).astype(float)
    spread = coded.std().replace(0, 1)
    numbers = ((coded - coded.mean()) / spread).fillna(0).to_numpy()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        lab = Datalab(data={"row": list(range(len(whole)))})
        lab.find_issues(features=numbers, issue_types={"near_duplicate": {}, "non_iid": {}})
    found = lab.get_issues("near_duplicate")
    cut = len(frames[0])
    crossing = sum(
        any((other < cut) != (i < cut) for other in others)
        for i, others in enumerate(found["near_duplicate_sets"])
        if len(others)
    )
    findings = (
        [{"check": "near_duplicate", "verdict": "fail", "text": f"{crossing} rows"}]
        if crossing
        else []
    )
    if bool(lab.get_issues("non_iid")["is_non_iid_issue"].any()):
        findings.append(
            {
                "check": "non_iid",
                "verdict": "warn",
                "text": "rows are not independent in their order",
            }
        )
    return findings


if __name__ == "__main__":
    main()
