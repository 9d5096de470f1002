"""Score a file of any size with a registered model. On the command line: `bulkhead predict
MODEL_URI IN OUT`.
"""

from __future__ import annotations

from prefect import flow

from schemas.parameters import ModelUri, Source, Target
from schemas.registry_records import Scored
from tasks.names import run_name
from tasks.score import score_rows


@flow(
    name="score",
    flow_run_name=run_name,
    description=(
        "Score a Parquet or CSV file of any size with a registered model, and write it with the"
        " predictions and the version that made them."
    ),
    persist_result=False,
)
def score(model_uri: ModelUri, source: Source, target: Target) -> Scored:
    """Score a file.

    Args:
        model_uri: The model, e.g. models:/clinic-visits@champion; an alias is resolved to a version
            once, before the first row.
        source: Parquet or CSV with the model's columns; a folder or glob of them.
            ${BULKHEAD_HOME:-.bulkhead} is the Bulkhead home.
        target: File to write, ending in .parquet, .csv or .csv.gz; replaced when all rows are
            scored.
    """
    return score_rows(model_uri, source, target)
