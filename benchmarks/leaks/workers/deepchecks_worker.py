"""Deepchecks in its own environment: reads one job a line and writes the findings as one line.

Only checks that can find a leak run.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import warnings
from typing import Any


def main() -> None:
    """Answer jobs until the input ends."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    try:
        import deepchecks
        import pandas as pd
        from deepchecks.tabular import Dataset, checks
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:200]}), flush=True)
        return
    print(json.dumps({"version": deepchecks.__version__}), flush=True)
    alone = [
        checks.DataDuplicates().add_condition_ratio_less_or_equal(0),
        checks.ConflictingLabels().add_condition_ratio_of_conflicting_labels_less_or_equal(0),
        checks.FeatureLabelCorrelation().add_condition_feature_pps_less_than(),
        checks.IdentifierLabelCorrelation().add_condition_pps_less_or_equal(),
    ]
    both = [
        checks.TrainTestSamplesMix().add_condition_duplicates_ratio_less_or_equal(),
        checks.IndexTrainTestLeakage().add_condition_ratio_less_or_equal(),
        checks.DateTrainTestLeakageDuplicates().add_condition_leakage_ratio_less_or_equal(),
        checks.DateTrainTestLeakageOverlap().add_condition_leakage_ratio_less_or_equal(),
        checks.FeatureLabelCorrelationChange()
        .add_condition_feature_pps_difference_less_than()
        .add_condition_feature_pps_in_train_less_than(),
        checks.StringMismatchComparison().add_condition_no_new_variants(),
    ]
    for line in sys.stdin:
        job = json.loads(line)
        try:
            sides = [side(Dataset, pd.read_parquet(job[name]), job) for name in ("train", "test")]
            print(json.dumps(run(alone, both, sides)), flush=True)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"[:200]}), flush=True)


def side(Dataset: Any, frame: Any, job: dict[str, Any]) -> Any:
    """Return a frame with the declared roles."""
    roles = job["roles"]
    left = {roles["label"], roles["id"], roles.get("time"), roles.get("group")}
    features = [c for c in frame if c not in left]
    return Dataset(
        frame,
        label=roles["label"],
        index_name=roles["id"],
        datetime_name=roles.get("time"),
        cat_features=[c for c in features if frame[c].dtype.kind in "Ob"],
        features=features,
        label_type=job["task"],
    )


def run(alone: list[Any], both: list[Any], sides: list[Any]) -> dict[str, Any]:
    """Return the findings of every check; a check that does not apply, or fails, finds nothing."""
    findings, broken = [], []
    for check, arguments in [*((c, sides[:1]) for c in alone), *((c, sides) for c in both)]:
        name = type(check).__name__
        try:
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                result = check.run(*arguments)
        except Exception as error:
            broken.append(f"{name}: {error}"[:100])
            continue
        for condition in result.conditions_results:
            if condition.category.name in ("FAIL", "WARN"):
                findings.append(
                    {
                        "check": name,
                        "verdict": condition.category.name.lower(),
                        "text": condition.details[:2000],
                    }
                )
    return {"findings": findings, "broken": broken}


if __name__ == "__main__":
    main()
