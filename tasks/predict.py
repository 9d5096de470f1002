"""Score a file with a registered model, for `bulkhead predict`."""

from __future__ import annotations

from pathlib import Path

from schemas.registry_records import Scored
from training.registry.score_file import predict_file as score
from training.serving.serving import in_words


def predict_file(
    model_uri: str, source: Path, target: Path, tracking_uri: str | None, intervals: bool = False
) -> Scored:
    """Write the rows of a file with their predictions, and intervals if asked, and the version."""
    return score(model_uri, source, target, tracking_uri, intervals)


def unfamiliar_values(scored: Scored) -> list[str]:
    """Return a sentence for each column with unknown or clipped values."""
    return in_words(scored.unfamiliar)
