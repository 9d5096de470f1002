"""Score a file with a registered model, for `bulkhead predict`."""

from __future__ import annotations

from pathlib import Path

from training.score_file import predict_file as score


def predict_file(model_uri: str, source: Path, target: Path, tracking_uri: str | None) -> int:
    """Write the rows of a file with their predictions; returns their number."""
    return score(model_uri, source, target, tracking_uri)
