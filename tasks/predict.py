"""Score a file with a registered model, for `bulkhead predict`."""

from __future__ import annotations

from pathlib import Path

from schemas.registry_records import Scored
from training.score_file import predict_file as score


def predict_file(model_uri: str, source: Path, target: Path, tracking_uri: str | None) -> Scored:
    """Write the rows of a file with their predictions, and which version made them."""
    return score(model_uri, source, target, tracking_uri)
